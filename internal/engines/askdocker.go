package engines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/host"
)

// listensAt is replaced in a test.
var listensAt = listening

// AskDocker asks a running dockerd which runtimes it has now and which is its default. Its files
// do not say that: at a reload dockerd keeps what they no longer name. It fails if dockerd has no
// socket with a path.
func AskDocker(pid int) (Settings, error) {
	err := errors.New("it listens at no socket with a path")
	for _, path := range listensAt(pid) {
		var says Settings
		// the list of sockets can have lines that a user of the node has forged
		if !host.Default().NodeListens(filepath.Dir(path), filepath.Base(path)) {
			continue
		}
		if says, err = dockerInfo(path); err == nil {
			return says, nil
		}
	}
	return Settings{}, err
}

// dockerInfo reads what a dockerd answers at a socket.
func dockerInfo(socket string) (Settings, error) {
	client := http.Client{
		Timeout: 10 * time.Second, // dockerd runs every runtime for its version
		Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			}}}
	response, err := client.Get("http://docker/info")
	if err != nil {
		return Settings{}, err
	}
	defer response.Body.Close()
	var info struct {
		DefaultRuntime string
		Runtimes       map[string]map[string]any
	}
	err = json.UnmarshalRead(io.LimitReader(response.Body, filetree.MaxSize), &info)
	switch {
	case err != nil:
		return Settings{}, fmt.Errorf("cannot understand what %s answers: %s, %w", socket, response.Status,
			err)
	case info.DefaultRuntime == "":
		return Settings{}, fmt.Errorf("%s names no default runtime: %s", socket, response.Status)
	}
	says := Settings{Default: info.DefaultRuntime, Handlers: map[string]string{}}
	for name, runtime := range info.Runtimes {
		says.Handlers[name], _ = runtime["path"].(string)
	}
	return says, nil
}

// listening are the paths of the unix sockets at which a process listens. A socket that systemd has
// made counts too, so the process's arguments do not tell them.
func listening(pid int) (paths []string) {
	var held []string
	files, _ := filepath.Glob(processDir(pid) + "/fd/*")
	for _, file := range files {
		if target, err := os.Readlink(file); err == nil {
			held = append(held, target)
		}
	}
	const accepts = "00010000" // __SO_ACCEPTCON of the kernel: it listens
	table, _ := host.ReadFile(processDir(pid)+"/net/unix", filetree.MaxSize)
	for line := range strings.Lines(string(table)) {
		// number, references, protocol, flags, type, state, inode, path
		f := strings.Fields(line)
		if len(f) == 8 && f[3] == accepts && filepath.IsAbs(f[7]) &&
			slices.Contains(held, "socket:["+f[6]+"]") {
			paths = append(paths, f[7])
		}
	}
	return paths
}
