package engines

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// Stored are the names of the containers, also of stopped ones, that the engine can start only by
// gpuledger's handler: Docker and Podman store the handler's name with each container. Podman's are
// those of root. It asks Podman itself, so there are none of Podman's if the root is not "/".
func (in Installation) Stored() []string {
	switch program := in.System.Program("podman"); {
	case in.Engine == grant.Docker:
		return in.storedByDocker()
	case in.Engine == grant.Podman && in.System.Root == "/" && program != "":
		return storedByPodman(program)
	}
	return nil
}

// storedByDocker reads the files in which dockerd stores a container. With user namespaces
// (userns-remap) they lie one directory deeper, in UID.GID.
func (in Installation) storedByDocker() (names []string) {
	root := "/var/lib/docker"
	if c, err := readDocker(in); err == nil {
		if dir := configfile.Text(c.(Docker).Tree(), "data-root"); dir != "" {
			root = dir
		}
	}
	for i, args := 0, in.Arguments(); i < len(args); i++ {
		dir, found := strings.CutPrefix(args[i], "--data-root")
		switch {
		case strings.HasPrefix(dir, "="):
			root = dir[1:]
		case found && dir == "" && i+1 < len(args):
			root = args[i+1]
		}
	}
	for _, remapped := range append([]string{""}, subdirectories(in.System, root, "[0-9]*.[0-9]*")...) {
		dir := filepath.Join(root, remapped, "containers")
		for _, id := range subdirectories(in.System, dir, "*") {
			var stored struct{ Runtime string }
			readJSON(in.System, filepath.Join(dir, id, "hostconfig.json"), &stored)
			if stored.Runtime != Handler {
				continue
			}
			c := struct{ Name string }{"/" + id[:min(len(id), 12)]}
			readJSON(in.System, filepath.Join(dir, id, "config.v2.json"), &c)
			names = append(names, grant.Printable(strings.TrimPrefix(c.Name, "/")))
		}
	}
	return names
}

// subdirectories are the directories in a directory whose names match a pattern, sorted.
func subdirectories(in filetree.System, dir, pattern string) (names []string) {
	resolved, err := in.Resolve(dir)
	if err != nil {
		return nil
	}
	entries, _ := os.ReadDir(in.Host(resolved))
	for _, e := range entries {
		if match, _ := filepath.Match(pattern, e.Name()); match && e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// readJSON reads what it can of a file; see filetree.MaxSize.
func readJSON(in filetree.System, path string, into any) {
	if _, c, err := in.Load(path); err == nil {
		_ = json.Unmarshal(c.Data, into)
	}
}

// storedByPodman asks Podman, which keeps its containers in a database. It takes what Podman prints
// within some seconds. Another program can hold Podman's locks.
func storedByPodman(program string) (names []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ids, _ := exec.CommandContext(ctx, program, "ps", "--all", "--quiet", "--no-trunc").Output()
	if len(strings.Fields(string(ids))) == 0 {
		return nil
	}
	args := append([]string{"container", "inspect", "--format", "{{.OCIRuntime}} {{.Name}}"},
		strings.Fields(string(ids))...)
	all, _ := exec.CommandContext(ctx, program, args...).Output() // it fails if one has gone meanwhile
	for line := range strings.Lines(string(all)) {
		runtime, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if runtime == Handler {
			names = append(names, grant.Printable(name))
		}
	}
	return names
}
