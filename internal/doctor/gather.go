package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/configure"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

// maxFile is the largest size of a file of other programs that is read, in bytes.
const maxFile = 4 << 20

// Gather reads the facts of a node whose configuration is the file config. self is the path of
// gpuledger; its other programs lie in the same directory. Gather needs root. Like `gpuledger
// check`, it repairs the derived files of the ledger.
func Gather(n *node.Node, config, self string) (Facts, error) {
	if os.Geteuid() != 0 {
		return Facts{}, errors.New("cannot examine the node: it takes root")
	}
	p := n.Policy
	f := Facts{Config: at(config), Broken: n.Broken, Policy: p, Mode: n.Mode(), State: at(p.StateDir),
		Run: at(p.RunDir), Engines: engines.Find("/")}
	// a state directory that cannot be read is reported by other lines
	f.Default, _ = configure.Defaults("/", p.StateDir)
	if pause, paused := n.Paused(); paused {
		f.Until = pause.Until
	}
	f.StateFree, f.RunFree = free(p.StateDir), free(p.RunDir)
	for _, name := range []string{"gpuledger-runtime", "gpuledger-hook", "gpuledgerd"} {
		f.Programs = append(f.Programs, at(filepath.Join(filepath.Dir(self), name)))
	}
	f.gatherQuotas()
	f.gatherRuntimes()
	f.gatherKernel(n.Host)
	f.gatherLedger(n)
	f.gatherInjectors()
	f.WhyNoShimLimit, f.WhyNoDriverLimit = grants.WhyNoShimLimit(n), grants.WhyNoDriverLimit(n)
	f.WhyNoComputeShare = grants.WhyNoComputeShare(n)
	f.Plugins = pluginsBelow("/")
	f.Daemon = n.Daemon()
	f.Listening = listening(p.Daemon.Listen, f.Daemon, n.Host)
	return f, nil
}

// at examines a name and the directories above it.
func at(path string) PathFacts {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	p := look(path)
	p.Writable = unix.Access(path, unix.W_OK) == nil
	for dir := path; filepath.IsAbs(dir) && dir != "/"; {
		dir = filepath.Dir(dir)
		above := look(dir)
		if above.loose() {
			p.Above = append(p.Above, above)
		}
		if p.Missing && !p.Writable && !above.Missing {
			p.Writable = unix.Access(dir, unix.W_OK) == nil
			if !p.Writable {
				break
			}
		}
	}
	return p
}

func look(path string) PathFacts {
	p := PathFacts{Path: path}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.Missing = true
	case err != nil:
		p.Error = err
	default:
		p.Mode = info.Mode()
		var st unix.Stat_t
		p.Error = unix.Stat(path, &st)
		p.UID, p.GID = st.Uid, st.Gid
	}
	return p
}

// gatherQuotas looks the users and groups of quotas up.
func (f *Facts) gatherQuotas() {
	for i, q := range f.Policy.Quotas {
		if why := cmp.Or(users.Unserved(q), users.Unknown(q)); why != "" {
			f.Quotas = append(f.Quotas, fmt.Sprintf("quota[%d]: %s", i, why))
		}
	}
}

func (f *Facts) gatherRuntimes() {
	for _, name := range f.Policy.Runtime.Path {
		path := engines.FindProgram(name)
		if path == "" {
			continue
		}
		r := RuntimeFacts{PathFacts: at(path)}
		if !r.loose() && len(r.Above) == 0 { // otherwise it is not safe for root to run it
			r.Version, r.Failed = versionOf(path)
		}
		f.Runtimes = append(f.Runtimes, r)
	}
	f.Unjudged = map[string]PathFacts{}
	for _, name := range f.Policy.Runtime.Programs()[len(f.Policy.Runtime.Path):] {
		p := PathFacts{Path: name, Missing: true}
		if path := engines.FindProgram(name); path != "" {
			p = at(path)
		}
		f.Unjudged[name] = p
	}
}

// versionOf is a runtime's version output. It waits only a short time for it. crun makes its
// directory for states even for that, so it gets one that is removed.
func versionOf(path string) (string, error) {
	dir, err := os.MkdirTemp("", "gpuledger-doctor-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
	out, err := cmd.Output()
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return grant.Printable(line), err
}

func (f *Facts) gatherKernel(h host.Host) {
	var name unix.Utsname
	_ = unix.Uname(&name)
	f.Kernel = unix.ByteSliceToString(name.Release[:])
	f.Cgroup = cgroup(filepath.Join(h.Sys, "fs/cgroup"))
	f.Majors, _ = h.NVIDIAMajors()
	f.Driver, _ = h.DriverVersion()
	if given, sets := h.DriverNodePermissions(); sets {
		f.Sets = given
	}
	for _, pattern := range []string{"nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"} {
		names, _ := filepath.Glob(filepath.Join(h.Dev, pattern))
		for _, name := range names {
			f.Devices = append(f.Devices, look(name))
		}
	}
}

func (f *Facts) gatherLedger(n *node.Node) {
	if f.Broken == nil {
		f.Inventory, f.InventoryProblem = n.Inventory()
		f.Gone = goneFiles(f.Inventory.Driver)
	} else {
		f.InventoryProblem = &grant.Problem{
			Message: "the inventory was not looked at, because the configuration is broken",
			Hint:    "correct the configuration"}
	}
	if f.LedgerLooked = f.Broken == nil && !f.State.Missing; f.LedgerLooked {
		f.Ledger, f.LedgerError = grants.Check(n)
	}
	if f.Policy.Audit.File != "" {
		f.Audit = at(f.Policy.Audit.File)
		f.Free = free(f.Policy.Audit.File)
	}
}

// goneFiles are the driver's files that containers get and that do not exist.
func goneFiles(d grant.Driver) (gone []string) {
	for _, file := range d.Files {
		if path := d.Source(file); file.Kind != grant.FileSocket && look(path).Missing {
			gone = append(gone, path)
		}
	}
	return gone
}

// free is the free space for a file, in bytes, whether or not the file exists.
func free(path string) uint64 {
	var st unix.Statfs_t
	for ; unix.Statfs(path, &st) != nil && path != "/"; path = filepath.Dir(path) {
	}
	return st.Bavail * uint64(st.Bsize)
}

// cdiDirs are the directories that engines read by default.
var cdiDirs = []string{"/etc/cdi", "/var/run/cdi"}

func (f *Facts) gatherInjectors() {
	hookDirs, cdiDirs := slices.Clone(engines.HookDirs), append(slices.Clone(cdiDirs), f.Policy.CDI.Dir)
	for _, e := range f.Engines {
		hookDirs, cdiDirs = append(hookDirs, e.HookDirs...), append(cdiDirs, e.CDIDirs...)
	}
	for _, path := range filesIn(hookDirs, ".json") {
		f.Hooks = append(f.Hooks, readHook(path))
	}
	slices.Sort(cdiDirs)
	cdiDirs = slices.Compact(cdiDirs)
	for _, dir := range cdiDirs {
		if p := at(dir); !p.Missing {
			// an empty directory counts too, because of those that can write to it
			f.CDI = append(f.CDI, CDIFacts{PathFacts: p})
		}
	}
	for _, path := range filesIn(cdiDirs, ".json", ".yaml") {
		f.CDI = append(f.CDI, readSpec(path))
	}
	for _, name := range []string{"nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-ctk"} {
		if path := engines.FindProgram(name); path != "" {
			f.Toolkit = append(f.Toolkit, path)
		}
	}
}

// filesIn lists files by the ends of their names. A directory with several names is read once.
func filesIn(dirs []string, ends ...string) []string {
	var files []string
	for _, dir := range dirs {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			continue
		}
		entries, _ := os.ReadDir(real)
		for _, e := range entries {
			if slices.Contains(ends, filepath.Ext(e.Name())) {
				files = append(files, filepath.Join(real, e.Name()))
			}
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

func readHook(path string) Hook {
	h := Hook{PathFacts: at(path)}
	var text []byte
	var file struct {
		Hook struct{ Path string }
	}
	if text, h.Error = host.ReadFile(path, maxFile); h.Error == nil {
		h.Error = json.Unmarshal(text, &file)
	}
	h.Program = file.Hook.Path
	h.Gone = look(h.Program).Missing
	return h
}

// readSpec reads only the kind of a CDI file. In YAML it is on a line of its own at the top level.
func readSpec(path string) CDIFacts {
	s := CDIFacts{PathFacts: at(path)}
	text, err := host.ReadFile(path, maxFile)
	if s.Error = err; err != nil {
		return s
	}
	var file struct {
		Kind string `json:"kind"`
	}
	if filepath.Ext(path) == ".json" {
		s.Error = json.Unmarshal(text, &file)
	} else {
		for line := range strings.Lines(string(text)) {
			if kind, found := strings.CutPrefix(line, "kind:"); found {
				file.Kind = strings.Trim(strings.TrimSpace(kind), `"'`)
			}
		}
	}
	if s.Kind = grant.Printable(file.Kind); s.Kind == "" && s.Error == nil {
		s.Error = errors.New("it has no kind")
	}
	return s
}
