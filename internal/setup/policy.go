package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// namespace is the namespace of all manifests.
const namespace = "gpuledger-system"

// agents are the containers of the manifests that need what only gpuledger may have: the node's
// file system, or the ledger. If all containers go through gpuledger, these do too. The names of a
// DaemonSet's pods end with five characters.
var agents = []grant.Exemption{
	{Namespace: namespace, Pod: "gpuledger-setup-?????", Container: "install"},
	{Namespace: namespace, Pod: "gpuledger-remove-?????", Container: "remove"},
	{Namespace: namespace, Pod: "gpuledger-dra-?????", Container: "agent"},
	{Namespace: namespace, Pod: "gpuledger-device-plugin-?????", Container: "agent"},
}

// exemptAgents adds to the node's configuration an exemption for each of the agents that has none
// yet. It changes nothing else. It runs after `gpuledger configure`, which fills in a configuration
// without values.
func exemptAgents() error {
	path, err := filepath.EvalSymlinks(configFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // `gpuledger configure` makes one if it needs it
	}
	if err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	more, err := exemptions(text)
	if err != nil || more == "" {
		return err
	}
	say("%s exempts gpuledger's own agents from now on: a user who may create pods in %s avoids the ledger",
		configFile, namespace)
	return host.ReplaceFile(path, append(text, more...), info.Mode().Perm(), host.Durable)
}

// exemptions is the text to add to a configuration.
func exemptions(text []byte) (more string, err error) {
	p, err := policy.Parse(text)
	if err != nil {
		return "", fmt.Errorf("cannot read %s:%w", configFile, err)
	}
	for _, e := range agents {
		pod := strings.ReplaceAll(e.Pod, "?", "x")
		if !admission.Exempt(grant.Identity{Namespace: e.Namespace, Pod: pod, Container: e.Container}, p) {
			more += fmt.Sprintf(entry, e.Namespace, e.Pod, e.Container)
		}
	}
	if more == "" {
		return "", nil
	}
	more = "\n# Written by gpuledger-setup: gpuledger's own agents. Let no other user create pods in this " +
		"namespace." +
		more
	// the file has the form policy.exempt = [...]
	if _, err := policy.Parse(append(text[:len(text):len(text)], more...)); err != nil {
		return "", fmt.Errorf("cannot exempt gpuledger's own agents: nothing can be added to "+
			"policy.exempt of %s "+
			"in the form that it has; write there yourself:\n%s", configFile, more)
	}
	return more, nil
}

// entry is the text of one exemption in a configuration.
const entry = "\n[[policy.exempt]]\nnamespace = %q\npod = %q\ncontainer = %q\n"

// hasMode reports whether the node's configuration sets policy.mode. If it cannot be read,
// `gpuledger configure` reports that.
func hasMode() bool {
	text, _ := os.ReadFile(configFile)
	var has struct{ Policy struct{ Mode *string } }
	return toml.Unmarshal(text, &has) == nil && has.Policy.Mode != nil
}
