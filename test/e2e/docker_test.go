//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/gpuledger/gpuledger/test/rig"
)

// moby is dockerd, used through its API as the docker client does.
type moby struct {
	http    *http.Client
	version string // the API's, as a path; "" is the newest
	modern  bool   // annotations and CDI
}

func docker20(s *site) []client {
	path, err := exec.LookPath("dockerd")
	must(s.T, err)
	return docker(s, path, moby{version: "/v1.41"})
}

func docker2(s *site) []client {
	// dockerd starts a containerd of its own
	must(s.T, os.Setenv("PATH", built("containerd-2")+":"+os.Getenv("PATH")))
	return docker(s, built("dockerd/dockerd"), moby{modern: true})
}

func docker(s *site, path string, m moby) []client {
	const socket = "/run/docker.sock"
	config := object{
		"hosts": []string{"unix://" + socket}, "bridge": "none", "iptables": false, "ip6tables": false,
		"userland-proxy": false,
		"storage-driver": "overlay2", "exec-opts": []string{"native.cgroupdriver=cgroupfs"},
		"default-runtime": s.entry.handler, "runtimes": object{s.entry.handler: object{"path": s.runtime()}},
	}
	if m.modern {
		config["features"] = object{"containerd-snapshotter": false, "cdi": true}
		config["cdi-spec-dirs"] = []string{"/etc/cdi", "/var/run/cdi"}
	}
	// Docker looks for NVIDIA's hook when it starts, and without it knows no --gpus.
	hook := filepath.Join(s.dir, "toolkit", "nvidia-container-runtime-hook")
	script(s.T, hook, "exit 0\n")
	must(s.T, os.Setenv("PATH", filepath.Dir(hook)+":"+os.Getenv("PATH")))
	writeFile(s.T, "/etc/docker/daemon.json", string(encode(s.T, config)))
	s.settled()
	m.http = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}}
	s.daemon(func() bool { _, err := m.call("GET", "/_ping", nil); return err == nil }, path)
	archive, err := os.ReadFile(s.images[image])
	must(s.T, err)
	_, err = m.call("POST", "/images/load?quiet=1", archive)
	must(s.T, err)
	return []client{m}
}

func (m moby) name() string { return "docker" }

func (m moby) owner(container) string { return "" }

func (m moby) refer(to *container, reference string) {
	if m.modern {
		to.annotate("gpuledger.dev/grant", reference)
	} else {
		to.env = append(to.env, "GPULEDGER_GRANT="+reference)
	}
}

func (m moby) cannot(c container) string {
	switch {
	case c.forged && !m.modern:
		return "no annotation reaches a bundle of Docker before 25"
	case len(c.cdi) > 0 && !m.modern:
		return "this engine knows no CDI"
	case c.userns:
		return "Docker maps the users of all containers or of none"
	}
	return ""
}

func (m moby) run(s *site, c container) result {
	var created struct{ Id string }
	if err := m.decoded(&created, "POST", "/containers/create?name="+c.name, m.body(s, c)); err != nil {
		return failed("", err)
	}
	defer func() { _, _ = m.call("DELETE", "/containers/"+created.Id+"?force=1", nil) }()
	if _, err := m.call("POST", "/containers/"+created.Id+"/start", nil); err != nil {
		return failed(created.Id, err)
	}
	var ended struct{ StatusCode int }
	must(s.T, m.decoded(&ended, "POST", "/containers/"+created.Id+"/wait", nil))
	r := rig.Result{Code: ended.StatusCode}
	for range 20 { // moby 2 may write a container's log after it has said that the container ended
		stream, err := m.call("GET", "/containers/"+created.Id+"/logs?stdout=1&stderr=1", nil)
		must(s.T, err)
		if r.Stdout, r.Stderr = demultiplexed(stream); r.Stdout+r.Stderr != "" {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return result{r, created.Id}
}

// failed is what the docker client would print.
func failed(id string, err error) result {
	return result{rig.Result{Code: 125, Stderr: "docker: Error response from daemon: " + err.Error()}, id}
}

func (m moby) body(s *site, c container) []byte {
	host := object{"NetworkMode": "none", "Privileged": c.privileged, "ReadonlyRootfs": c.readOnly}
	if c.hostNetwork {
		host["NetworkMode"] = "host"
	}
	if c.handler != "" {
		host["Runtime"] = c.handler
	}
	if c.hostPID {
		host["PidMode"] = "host"
	}
	if m.modern {
		host["Annotations"] = c.annotations
	}
	binds, devices := []string{}, []object{}
	for _, b := range c.binds {
		binds = append(binds, b.from+":"+b.to)
	}
	for _, path := range c.devices {
		devices = append(devices, object{"PathOnHost": path, "PathInContainer": path,
			"CgroupPermissions": "rwm"})
	}
	host["Binds"], host["Devices"] = binds, devices
	if len(c.gpus) > 0 { // as the docker client and Compose write it
		host["DeviceRequests"] = []object{{"Driver": "nvidia", "DeviceIDs": c.gpus,
			"Capabilities": [][]string{{"gpu"}}}}
	}
	if len(c.cdi) > 0 {
		host["DeviceRequests"] = []object{{"Driver": "cdi", "DeviceIDs": c.cdi}}
	}
	return encode(s.T, object{"Image": image, "Cmd": []string{"/bin/sh", "-c", c.script}, "Env": c.env,
		"HostConfig": host})
}

func (m moby) decoded(out any, method, path string, body []byte) error {
	data, err := m.call(method, path, body)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, out)
}

// call makes a request to the daemon. A refusal is an error in the daemon's words.
func (m moby) call(method, path string, body []byte) ([]byte, error) {
	request, err := http.NewRequest(method, "http://docker"+m.version+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if filepath.Base(path) == "load?quiet=1" {
		request.Header.Set("Content-Type", "application/x-tar")
	}
	response, err := m.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode < 400 {
		return data, err
	}
	var refusal struct{ Message string }
	if json.Unmarshal(data, &refusal) != nil {
		refusal.Message = string(data)
	}
	return nil, fmt.Errorf("%s", refusal.Message)
}

// demultiplexed splits a stream of the Engine API. Each part is a byte for the stream, three of
// padding, a length, and that many bytes.
func demultiplexed(stream []byte) (stdout, stderr string) {
	for len(stream) >= 8 {
		end := min(8+int(binary.BigEndian.Uint32(stream[4:8])), len(stream))
		if stream[0] == 2 {
			stderr += string(stream[8:end])
		} else {
			stdout += string(stream[8:end])
		}
		stream = stream[end:]
	}
	return stdout, stderr
}
