package request

import (
	"fmt"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// BenchmarkFind is what Find takes for containers as engines start them. The second look is that at
// the spec with its edits, which knows what the first look has seen.
func BenchmarkFind(b *testing.B) {
	plainPod := func(s *scene) {
		s.pod()
		s.rooted()
		s.caps("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETUID", "CAP_SYS_CHROOT")
		for _, file := range []string{"etc-hosts", "hostname", "resolv.conf", "termination-log"} {
			s.bind(s.Touch(file), "/etc/"+file)
		}
		for _, dir := range []string{"shm", "token", "config", "cache", "data"} {
			s.bind(s.Mkdir("volumes/"+dir), "/mnt/"+dir, "ro")
		}
		for i := range 30 {
			s.env(fmt.Sprintf("SERVICE_%d_PORT=tcp://10.0.0.%d:443", i, i))
		}
	}
	for _, c := range []struct {
		name  string
		setup func(*scene)
	}{
		{"pod", plainPod},
		{"gpu", func(s *scene) {
			plainPod(s)
			s.env("NVIDIA_VISIBLE_DEVICES=GPU-a", "NVIDIA_DRIVER_CAPABILITIES=all",
				"GPULEDGER_GRANT=g-abcdefghijkl")
			for minor, name := range []string{"nvidia0", "nvidia1", "nvidia2", "nvidia3"} {
				s.device("/dev/"+name, "c", 195, int64(minor))
				s.addRules(fmt.Sprintf("allow c 195:%d rw", minor))
			}
			s.addRules("allow c 195:255 rw", "allow c 508:0 rw", "allow c 508:1 rw", "allow c 226:128 rw")
			s.Mkdir("lib")
			for i := range 40 {
				s.spec.Mounts = append(s.spec.Mounts, specs.Mount{Type: "bind",
					Source:      s.Touch(fmt.Sprintf("lib/libnvidia-%d.so.1", i)),
					Destination: fmt.Sprintf("/usr/lib/libnvidia-%d.so.1", i),
					Options:     grant.DriverFileOptions})
			}
		}},
		{"agent", func(s *scene) {
			plainPod(s)
			s.caps("CAP_SYS_ADMIN")
			s.rules("allow a")
			s.bind("/", "/host", "ro")
			s.bind(s.Path("dev"), "/dev")
			s.bind("/run", "/run")
			s.bind("/var/lib/kubelet", "/var/lib/kubelet", "ro")
		}},
	} {
		s := newScene(b)
		c.setup(s)
		b.Run(c.name+"/first", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.node.Seen = &Seen{}
				s.find()
			}
		})
		b.Run(c.name+"/second", func(b *testing.B) {
			b.ReportAllocs()
			s.node.Seen = &Seen{}
			s.find()
			for b.Loop() {
				s.find()
			}
		})
	}
}
