package configure

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// policyReader names a program that checks containers without the engine's configuration, and would
// refuse more of them if gpuledger's own configuration became after: the NRI plugin of gpuledgerd,
// or the hook. It says what to do first. It is "" if there is none.
func policyReader(in filetree.System, now, after filetree.FileContent) string {
	has, err := policy.Parse(now.Data)
	if err != nil {
		return "" // these programs cannot read it either
	}
	if becomes, err := policy.Parse(after.Data); err != nil || !refusesMore(has.Rules, becomes.Rules) {
		return ""
	}
	if pid := enforcingDaemon(in, has.RunDir); pid != 0 {
		return fmt.Sprintf("gpuledgerd (pid %d) obeys it, and would refuse more new pods without it; stop "+
			"gpuledgerd, and undo it again after that", pid)
	}
	if file := hookFile(in); file != "" {
		return file + " names gpuledger-hook, which obeys it, and would refuse more new containers without " +
			"it; remove that file, and undo it again after that"
	}
	return ""
}

// refusesMore compares the rules that configure writes.
func refusesMore(now, after grant.Rules) bool {
	return after.Mode == grant.Enforce && (now.Mode != grant.Enforce ||
		now.Privileged == grant.Strip && after.Privileged == grant.RefusePrivileged)
}

// enforcingDaemon is the process of a gpuledgerd whose NRI plugin checks containers, or 0. Without
// the engine's socket the plugin checks none.
func enforcingDaemon(in filetree.System, runDir string) int {
	pid := host.Default().Holder(in.Host(filepath.Join(runDir, "gpuledgerd.lock")))
	if pid == 0 {
		return 0
	}
	line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	args := strings.Split(string(line), "\x00")
	if slices.Contains([]string{"observe", "off"}, flagOf(args, "nri")) {
		return 0
	}
	socket := flagOf(args, "nri-socket")
	if socket == "" {
		socket = "/var/run/nri/nri.sock"
	}
	if name, err := in.Resolve(socket); err != nil || !in.Exists(name) {
		return 0
	}
	return pid
}

// flagOf is the value of a flag in a process's arguments, with one dash or two; "" without the
// flag.
func flagOf(args []string, name string) (value string) {
	for i, arg := range args {
		flag, after, found := strings.Cut(arg, "=")
		switch {
		case flag != "-"+name && flag != "--"+name:
		case found:
			value = after
		case i+1 < len(args):
			value = args[i+1]
		}
	}
	return value
}

// hookFile is a file in an engine's hooks directory that names gpuledger-hook, or "".
func hookFile(in filetree.System) string {
	dirs := slices.Clone(engines.HookDirs)
	for _, e := range engines.Find(in.Root) {
		dirs = append(dirs, e.HookDirs...)
	}
	for _, dir := range dirs {
		for _, path := range in.Glob(filepath.Join(dir, "*.json")) {
			if _, c, err := in.Load(path); err == nil && bytes.Contains(c.Data, []byte("gpuledger-hook")) {
				return path
			}
		}
	}
	return ""
}
