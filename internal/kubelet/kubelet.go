// Package kubelet tells which engine the node's kubelet uses.
package kubelet

import (
	"bytes"
	"cmp"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/host"
)

// Endpoint returns the engine's endpoint that the node's kubelet was started with, or "". isNodes
// reports whether a process, by its directory in /proc, is the node's own: one in a container and
// one of a user can have any name. The kubelet of k3s and of MicroK8s is no process of that name.
func Endpoint(isNodes func(process string) bool) string {
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		text, _ := host.ReadFile(filepath.Join(process, "cmdline"), maxCommandLine) // it may be gone
		args := strings.Split(string(bytes.TrimRight(text, "\x00")), "\x00")
		if filepath.Base(args[0]) != "kubelet" || !isNodes(process) {
			continue
		}
		endpoint := optionOf(args, "container-runtime-endpoint")
		if endpoint = cmp.Or(endpoint, endpointIn(optionOf(args, "config"))); endpoint != "" {
			return endpoint
		}
	}
	return ""
}

// maxCommandLine and maxKubeletConfig bound what is read of a kubelet, in bytes.
const maxCommandLine, maxKubeletConfig = 1 << 20, 1 << 20

// optionOf is the value of an option in a command line, as --name=value or --name value.
func optionOf(args []string, name string) (value string) {
	for i, arg := range args {
		key, v, assigned := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case key != name || !strings.HasPrefix(arg, "-"):
		case assigned:
			value = v
		case i+1 < len(args):
			value = args[i+1]
		}
	}
	return value
}

// endpointIn is the engine's endpoint in a kubelet's configuration, YAML or JSON with a key a line.
func endpointIn(file string) string {
	text, _ := host.ReadFile(file, maxKubeletConfig)
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if strings.Trim(key, `"`) == "containerRuntimeEndpoint" {
			value, _, _ = strings.Cut(value, " #")
			return strings.Trim(strings.TrimSpace(value), `"',`)
		}
	}
	return ""
}
