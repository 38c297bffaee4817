package admission

import (
	"slices"
	"strings"
	"testing"
	"time"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// installed is a driver with a file of each kind.
var installed = grant.Inventory{Driver: grant.Driver{Root: "/drv", Files: []grant.DriverFile{
	{Path: "/l64/libcuda.so.9", Kind: grant.FileLibrary, Capability: grant.Compute, Target: "/usr/lib64", Names: []string{"libcuda.so", "libcuda.so.1"}, Bits: 64},
	{Path: "/l32/libcuda.so.9", Kind: grant.FileLibrary, Capability: grant.Compute, Target: "/usr/lib", Names: []string{"libcuda.so.1"}, Bits: 32},
	{Path: "/l64/libvdpau.so.9", Kind: grant.FileLibrary, Capability: grant.Video, Target: "/usr/lib64", Names: []string{"vdpau/libvdpau.so.1"}, Bits: 64},
	{Path: "/l64/libnew.so.9", Kind: grant.FileLibrary, Target: "/usr/lib64", Names: []string{"libnew.so.1"}, Bits: 64},
	{Path: "/fw/gsp.bin", Kind: grant.FileFirmware, Target: "/lib/firmware/nvidia/9/gsp.bin"},
	{Path: "/usr/bin/nvidia-smi", Kind: grant.FileBinary, Capability: grant.Utility, Target: "/usr/bin/nvidia-smi"},
	{Path: "/usr/bin/nvidia-persistenced", Kind: grant.FileBinary, Capability: grant.Utility, Target: "/usr/bin/nvidia-persistenced"},
	{Path: "/usr/lib/nvidia/mps", Kind: grant.FileBinary, Capability: grant.Compute, Target: "/usr/bin/nvidia-cuda-mps-server"},
	{Path: "/run/nvidia-persistenced/socket", Kind: grant.FileSocket, Capability: grant.Utility, Target: "/run/nvidia-persistenced/socket"},
	{Path: "/usr/share/v.json", Kind: grant.FileConfig, Capability: grant.Graphics, Target: "/etc/vulkan/icd.d/v.json"},
	{Path: "/x/unnamed.so", Kind: grant.FileModule, Capability: grant.Display, Target: "/usr/lib64/xorg/modules"}, // no program can find it
	{Path: "/x/nvidia_drv.so", Kind: grant.FileModule, Capability: grant.Display, Target: "/usr/lib64/xorg/modules/drivers", Names: []string{"nvidia_drv.so"}},
}}}

func places(mounts []*cdispec.Mount) []string {
	list := []string{}
	for _, m := range mounts {
		list = append(list, strings.TrimPrefix(m.HostPath, "/drv")+" "+m.ContainerPath)
	}
	return list
}

func TestDriverFilesByCapability(t *testing.T) {
	const (
		firmware = "/fw/gsp.bin /lib/firmware/nvidia/9/gsp.bin"
		fresh    = "/l64/libnew.so.9 /img/lib/libnew.so.1"
		cuda     = "/l64/libcuda.so.9 /img/lib/libcuda.so.1"
		plain    = "/l64/libcuda.so.9 /img/lib/libcuda.so"
		smi      = "/usr/bin/nvidia-smi /usr/bin/nvidia-smi"
		vdpau    = "/l64/libvdpau.so.9 /img/lib/vdpau/libvdpau.so.1"
	)
	both := grant.Layout{Lib64: "/img/lib", Lib32: "/img/lib32"}
	for name, c := range map[string]struct {
		request grant.Request
		want    []string
	}{
		"nothing requested": {grant.Request{Layout: both}, []string{fresh, firmware}},
		"compute": {grant.Request{Layout: both, Capabilities: []grant.Capability{
			grant.Compute}}, []string{plain, cuda, fresh, firmware}},
		"utility": {grant.Request{Layout: both, Capabilities: []grant.Capability{
			grant.Utility}}, []string{fresh, firmware, smi}},
		"video": {grant.Request{Layout: both, Capabilities: []grant.Capability{grant.Video}},
			[]string{vdpau, fresh, firmware}},
		"graphics": {grant.Request{Layout: both, Capabilities: []grant.Capability{
			grant.Graphics}}, []string{fresh, firmware, "/usr/share/v.json /etc/vulkan/icd.d/v.json"}},
		"display": {grant.Request{Layout: both, Capabilities: []grant.Capability{
			grant.Display}}, []string{fresh, firmware,
			"/x/nvidia_drv.so /usr/lib64/xorg/modules/drivers/nvidia_drv.so"}},
		"32-bit as well": {grant.Request{Layout: both, Capabilities: []grant.Capability{grant.Compute},
			Compat32: true}, []string{plain, cuda, "/l32/libcuda.so.9 /img/lib32/libcuda.so.1", fresh,
			firmware}},
		"32-bit, but no loader": {grant.Request{Layout: grant.Layout{Lib64: "/img/lib"},
			Capabilities: []grant.Capability{grant.Compute}, Compat32: true},
			[]string{plain, cuda, fresh, firmware}},
		"an image that was not read": {grant.Request{Layout: grant.Layout{Unseen: true},
			Capabilities: []grant.Capability{grant.Compute}},
			[]string{"/l64/libcuda.so.9 /usr/lib64/libcuda.so", "/l64/libcuda.so.9 /usr/lib64/libcuda.so.1",
				"/l64/libnew.so.9 /usr/lib64/libnew.so.1", firmware}},
		"an image without libc": {grant.Request{Capabilities: []grant.Capability{
			grant.Compute, grant.Utility}}, []string{firmware}},
	} {
		t.Run(name, func(t *testing.T) {
			mounts := driverFiles(wantedBy(&c.request), &installed, &grant.Policy{})
			if got := places(mounts); !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			for _, m := range mounts {
				if !slices.Equal(m.Options, []string{"ro", "nosuid", "nodev", "bind"}) {
					t.Errorf("%s has options %v", m.ContainerPath, m.Options)
				}
			}
		})
	}
}

// TestOfferedFilesHaveTheNodesPaths tests the files for an image that was not read. No container
// gets the programs and sockets of daemons.
func TestOfferedFilesHaveTheNodesPaths(t *testing.T) {
	want := []string{"/l64/libcuda.so.9 /usr/lib64/libcuda.so", "/l64/libcuda.so.9 /usr/lib64/libcuda.so.1",
		"/l64/libvdpau.so.9 /usr/lib64/vdpau/libvdpau.so.1",
		"/l64/libnew.so.9 /usr/lib64/libnew.so.1", "/fw/gsp.bin /lib/firmware/nvidia/9/gsp.bin",
		"/usr/bin/nvidia-smi /usr/bin/nvidia-smi", "/usr/share/v.json /etc/vulkan/icd.d/v.json"}
	if got := places(InstalledFiles(installed)); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	v := Offer(grant.Grant{ID: "g-abcdefghijkl", Owner: grant.Bearer, Mode: grant.Limit}, time.Unix(1e9, 0),
		installed, grant.Policy{})
	if got := places(v.Edits.Mounts); v.Kind != grant.Admit || !slices.Equal(got, want) {
		t.Errorf("a grant offers %s %v", v.Kind, got)
	}
}

func TestOfferOfWhatCannotBeUsed(t *testing.T) {
	now := time.Unix(1e9, 0)
	g := grant.Grant{ID: "g-abcdefghijkl", Owner: grant.Bearer, Mode: grant.Limit,
		GPUs: []grant.Share{{UUID: "GPU-0"}}}
	inv := grant.Inventory{GPUs: []grant.GPU{{UUID: "GPU-0", Health: grant.Healthy}}}
	expired, draining, bound, other := g, g, g, g
	expired.Expires, draining.Draining, other.GPUs = now, true, []grant.Share{{UUID: "GPU-9"}}
	bound.Bindings = []grant.Binding{{Life: grant.Alive}}
	for name, c := range map[string]struct {
		grant grant.Grant
		want  grant.Code
	}{"usable": {g, ""}, "in use": {bound, ""}, "expired": {expired, grant.GrantExpired},
		"released": {draining, grant.GrantExpired}, "a GPU that was removed": {other, grant.GPUUnhealthy}} {
		if v := Offer(c.grant, now, inv, grant.Policy{}); v.Code != c.want ||
			(v.Kind == grant.Admit) != (c.want == "") {
			t.Errorf("%s: %s %s", name, v.Kind, v.Code)
		}
	}
}
