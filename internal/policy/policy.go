// Package policy reads the configuration (/etc/gpuledger/config.toml) and checks it. Load returns
// it as a grant.Policy, the value that decisions take. The file of a cluster is read over it
// (cluster.go). A subcommand that is only passed on to the real runtime reads no more than the
// runtime's path (Runtime).
package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// DefaultPath is the configuration file if none is named.
const DefaultPath = "/etc/gpuledger/config.toml"

// PathEnv is the environment variable with the path of another configuration file. The two hot
// binaries have no other way, because the engine chooses their arguments.
const PathEnv = "GPULEDGER_CONFIG"

// MaxSize is the largest configuration file that is read, in bytes. A real one has a few kilobytes.
const MaxSize = 1 << 20

// Default is the policy of a node without a configuration file.
func Default() grant.Policy {
	return grant.Policy{
		StateDir:  "/var/lib/gpuledger",
		RunDir:    "/run/gpuledger",
		Engine:    grant.Containerd,
		Runtime:   grant.Runtime{Path: []string{"runc", "crun"}, Unjudged: ""},
		Inventory: grant.Source{Source: grant.NVML, DriverRoot: "/"},
		Rules: grant.Rules{
			Mode:            grant.Enforce,
			Ungranted:       grant.RefuseUngranted,
			Privileged:      grant.RefusePrivileged,
			MinimumStrength: grant.StrengthNone,
			OnOverGrant:     grant.ReportFinding,
			OnOutsideLedger: grant.ReportFinding,
			DeviceEnv:       []string{"NVIDIA_VISIBLE_DEVICES"},
		},
		Annotations: grant.Annotations{
			Trust:    grant.Verify,
			Dialects: []grant.Dialect{grant.DialectGPULedger, grant.DialectGPUShare},
		},
		Asks: grant.Asks{Engines: []grant.Engine{}, MaxGPUs: 1, Modes: []grant.Mode{grant.Limit},
			Mode: grant.Limit, Total: 100},
		Enforcement: grant.Enforcement{Limit: grant.AutoBackend, Compute: grant.CountShare,
			VisibleDevices: grant.VisibleUUIDs, MPSUsers: grant.MPSRoot,
			UserNodes: grant.UserNodesMode},
		CDI:    grant.CDI{Dir: "/var/run/cdi", Hook: "/usr/bin/gpuledger-hook"},
		Daemon: grant.Daemon{Listen: "127.0.0.1:9836", Interval: "1s", Grace: "10s"},
		Audit: grant.Audit{File: "/var/log/gpuledger/audit.jsonl",
			MaxSize: grant.Size(16 * grant.MiB), Keep: 4},
	}
}

// Path returns the file to read: flag, else that of the environment, else DefaultPath.
func Path(flag string) string {
	if flag != "" {
		return flag
	}
	if env := os.Getenv(PathEnv); env != "" {
		return env
	}
	return DefaultPath
}

// Load reads the configuration file, and the cluster's file beside it. Of the first, only
// DefaultPath may be missing; the default policy is then in force. An error is one line with file,
// line and key. It comes with the default policy, but with the file's runtime and directories of
// the ledger if these can be read.
func Load(path string) (p grant.Policy, err error) {
	p = Default()
	text, err := host.ReadFile(path, MaxSize)
	missing := errors.Is(err, fs.ErrNotExist) && path == DefaultPath
	if err == nil || missing {
		var cluster []byte
		cluster, err = host.ReadFile(ClusterPath(path), MaxSize)
		if errors.Is(err, fs.ErrNotExist) {
			if missing {
				return p, nil
			}
			err = nil
		}
		if err == nil {
			err = parse(text, cluster, &p, path, validate)
		}
	}
	if err != nil {
		p = Default()
		if text != nil {
			scanFile(text).keepReadable(&p)
		}
		err = fmt.Errorf("cannot read the configuration: %w", err)
	}
	return p, err
}

// Parse parses a configuration over the defaults. Its error begins with the line, if that is known.
func Parse(text []byte) (grant.Policy, error) {
	p := Default()
	if err := parse(text, nil, &p, "", noMistake); err != nil {
		return Default(), errors.New(strings.TrimPrefix(err.Error(), ":"))
	}
	return p, nil
}

// parse parses a configuration over the defaults, which p has, and the cluster's file over that. An
// error begins with the path of the file that it is in, and the line if that is known.
func parse(text, cluster []byte, p *grant.Policy, path string, check func(grant.Policy) error) error {
	unjudged := p.Runtime.Unjudged
	p.Runtime.Unjudged = nil // otherwise the library accepts only the type of the default
	if err := decode(text, p, true); err != nil {
		return inFile(path, 0, located(err, text))
	}
	if p.Runtime.Unjudged == nil {
		p.Runtime.Unjudged = unjudged
	}
	if cluster != nil {
		if err := overlay(cluster, p); err != nil {
			return inFile(ClusterPath(path), 0, err)
		}
	}
	err := check(*p)
	if err == nil {
		return nil
	}
	key, _, _ := strings.Cut(err.Error(), ":")
	if row := lineOf(cluster, key); row > 0 {
		return inFile(ClusterPath(path), row, err)
	}
	if row := lineOf(text, key); row > 0 {
		return inFile(path, row, err)
	}
	return inFile(path, 0, fmt.Errorf(" %w", err))
}

// inFile puts a file and a line before an error.
func inFile(path string, row int, err error) error {
	if row > 0 {
		return fmt.Errorf("%s:%d: %w", path, row, err)
	}
	return fmt.Errorf("%s:%w", path, err)
}

// located rewrites an error of the TOML library as "LINE: key: why".
func located(err error, text []byte) error {
	var strict *toml.StrictMissingError
	if errors.As(err, &strict) && len(strict.Errors) > 0 {
		first := strict.Errors[0]
		row, _ := first.Position()
		return fmt.Errorf("%d: unknown key %q", row, strings.Join(first.Key(), "."))
	}
	why := grant.Printable(strings.TrimPrefix(err.Error(), "toml: "))
	row := firstLineWith(err, text)
	var decode *toml.DecodeError
	if errors.As(err, &decode) {
		// for some values the library knows only the table
		if at, _ := decode.Position(); !isHeader(text, at) {
			row = at
		}
	}
	if key := keyAt(text, row); key != "" {
		key, why = explainWrongType(key, why)
		return fmt.Errorf("%d: %s: %s", row, key, why)
	}
	return fmt.Errorf("%d: %s", row, why)
}

// firstLineWith finds the line of an error without a position. The library reads from the top, so
// the shortest text with the same error ends at that line.
func firstLineWith(err error, text []byte) int {
	lines := bytes.SplitAfter(text, []byte("\n"))
	return 1 + sort.Search(len(lines)-1, func(i int) bool {
		e := decode(bytes.Join(lines[:i+1], nil), new(grant.Policy), false)
		return e != nil && e.Error() == err.Error()
	})
}

// isHeader reports whether a line is a table's header.
func isHeader(text []byte, row int) bool {
	lines := bytes.Split(text, []byte("\n"))
	return 0 < row && row <= len(lines) && bytes.HasPrefix(bytes.TrimSpace(lines[row-1]), []byte("["))
}

// keys calls fn with each line that sets a key, and with the key and its table's name. The
// library's errors have only a position. keys reads no more of TOML than headers and "key =".
func keys(text []byte, fn func(row int, key string)) {
	table := ""
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			table = strings.Trim(strings.SplitN(line, "#", 2)[0], "[] \t") + "."
			fn(i+1, strings.TrimSuffix(table, "."))
			continue
		}
		if name, _, found := strings.Cut(line, "="); found && !strings.HasPrefix(line, "#") {
			fn(i+1, table+strings.TrimSpace(name))
		}
	}
}

func keyAt(text []byte, row int) (key string) {
	keys(text, func(r int, k string) {
		if r == row {
			key = k
		}
	})
	return key
}

// lineOf returns the line that sets a key, or that of its table if the key is missing. An index, as
// in key[2].name, means the third table of that name; if the text has no third, the last.
func lineOf(text []byte, key string) (row int) {
	name, array, index := key, "", 0
	if open := strings.IndexByte(key, '['); open >= 0 {
		end := open + strings.IndexByte(key[open:], ']')
		array, name = key[:open], key[:open]+key[end+1:]
		index, _ = strconv.Atoi(key[open+1 : end])
	}
	table, _, _ := strings.Cut(name, ".")
	headers := 0
	keys(text, func(r int, k string) {
		if k == array {
			headers++
		}
		if headers <= index+1 && (k == name || k == array || k == table && row == 0) {
			row = r
		}
	})
	return row
}

// The bounds of audit.max_size and audit.keep: a file has room for some lines, and a rotation is
// some renames.
const (
	minAudit = grant.Size(16 * grant.KiB)
	maxKeep  = 100
)

// validate checks what the types alone cannot express.
func validate(p grant.Policy) error {
	if err := validPlaces(p); err != nil {
		return err
	}
	if len(p.Runtime.Path) == 0 {
		return errors.New("runtime.path: want at least one name or path of an OCI runtime")
	}
	if err := validUnjudged(p.Runtime.Unjudged); err != nil {
		return err
	}
	if p.Inventory.Source == grant.Simulated && p.Inventory.File == "" {
		return errors.New(
			`inventory.file: a simulated node needs its description, as "gpuledger inventory ` +
				`simulate" writes it`)
	}
	if !filepath.IsAbs(p.Inventory.DriverRoot) {
		return fmt.Errorf("inventory.driver_root: want an absolute path, not %q", p.Inventory.DriverRoot)
	}
	for key, path := range map[string]string{"cdi.dir": p.CDI.Dir, "cdi.hook": p.CDI.Hook} {
		if !filepath.IsAbs(path) || filepath.Clean(path) == "/" {
			return fmt.Errorf("%s: want an absolute path, not %q", key, path)
		}
	}
	if p.Enforcement.Shim != "" && !filepath.IsAbs(p.Enforcement.Shim) {
		return fmt.Errorf("enforcement.shim: want an absolute path, not %q", p.Enforcement.Shim)
	}
	if d, err := grant.ParseDuration(p.Daemon.Interval); err != nil || d <= 0 {
		return fmt.Errorf("daemon.interval: want a duration above 0, as 1s, not %q", p.Daemon.Interval)
	}
	if d, err := grant.ParseDuration(p.Daemon.Grace); err != nil || d < 0 {
		return fmt.Errorf("daemon.grace: want a duration, as 10s, not %q", p.Daemon.Grace)
	}
	if p.Audit.File != "" && !filepath.IsAbs(p.Audit.File) {
		return fmt.Errorf("audit.file: want an absolute path, not %q", p.Audit.File)
	}
	if p.Audit.MaxSize != 0 && p.Audit.MaxSize < minAudit {
		return fmt.Errorf("audit.max_size: want 0MiB (never rotate) or at least %s", grant.Bytes(minAudit))
	}
	if p.Audit.Keep < 1 || p.Audit.Keep > maxKeep {
		return fmt.Errorf("audit.keep: want 1 to %d files, not %d", maxKeep, p.Audit.Keep)
	}
	if err := validAsks(p.Asks); err != nil {
		return err
	}
	if err := validQuotas(p); err != nil {
		return err
	}
	for i, e := range p.Rules.Exempt {
		if err := validExemption(e); err != nil {
			return fmt.Errorf("policy.exempt[%d]: %w", i, err)
		}
	}
	return validPools(p.Pools)
}

// noMistake is validate, and finds what only a part of gpuledger cannot use. A file that is in
// force may have that: the rest of it holds, and the containers of its grants start.
func noMistake(p grant.Policy) error {
	for _, err := range []error{validate(p), usableRuntimes(p.Runtime.Path), usableListen(p.Daemon.Listen),
		usablePools(p.Pools)} {
		if err != nil {
			return err
		}
	}
	for _, name := range p.Rules.DeviceEnv {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return fmt.Errorf("policy.device_env: want names of environment variables, not %q", name)
		}
	}
	return nil
}

// usableRuntimes checks runtime.path. A relative path would be one below the container's bundle,
// which is where engines start the wrapper.
func usableRuntimes(paths []string) error {
	for _, path := range paths {
		if path == "" || strings.Contains(path, "/") && !filepath.IsAbs(path) {
			return fmt.Errorf("runtime.path: want names or absolute paths, not %q", path)
		}
	}
	return nil
}

// validUnjudged checks runtime.unjudged: a name, or names by engine.
func validUnjudged(v any) error {
	byEngine, isTable := v.(map[string]any)
	if !isTable && v != nil {
		byEngine = map[string]any{string(grant.Containerd): v}
	}
	for engine, name := range byEngine {
		text, isText := name.(string)
		switch {
		case !slices.Contains(containerEngines, grant.Engine(engine)):
			return fmt.Errorf("runtime.unjudged: want containerd, cri-o, podman or docker, not %q", engine)
		case !isText:
			return fmt.Errorf(
				"runtime.unjudged: want a runtime's name or path, or a table of them by engine, not %v", name)
		case strings.Contains(text, "/") && !filepath.IsAbs(text):
			return fmt.Errorf("runtime.unjudged: want a name or an absolute path, not %q", text)
		}
	}
	return nil
}

// validAsks checks what containers may ask for.
func validAsks(a grant.Asks) error {
	switch {
	case a.MaxGPUs < 1:
		return fmt.Errorf("ask.max_gpus: want at least 1, not %d", a.MaxGPUs)
	case a.Total < 1 || a.Total > 100:
		return fmt.Errorf("ask.total: want a percentage of each GPU from 1 to 100, not %d", a.Total)
	case len(a.Engines) > 0 && !slices.Contains(a.Modes, a.Mode):
		return fmt.Errorf("ask.mode: %s is not among ask.modes, %v", a.Mode, a.Modes)
	}
	return nil
}

var containerEngines = []grant.Engine{grant.Containerd, grant.CRIO, grant.Podman, grant.Docker}

// validExemption refuses an exemption of everything, and globs that cannot match.
func validExemption(e grant.Exemption) error {
	if e == (grant.Exemption{}) {
		return errors.New("want at least one of namespace, pod, container")
	}
	for _, glob := range []string{e.Namespace, e.Pod, e.Container} {
		if _, err := filepath.Match(glob, ""); err != nil {
			return fmt.Errorf("%q is no glob", glob)
		}
	}
	return nil
}
