module github.com/gpuledger/gpuledger/test/engines/runc-suite

go 1.25.0

tool (
	github.com/opencontainers/runc/tests/cmd/fs-idmap
	github.com/opencontainers/runc/tests/cmd/key_label
	github.com/opencontainers/runc/tests/cmd/pidfd-kill
	github.com/opencontainers/runc/tests/cmd/recvtty
	github.com/opencontainers/runc/tests/cmd/remap-rootfs
	github.com/opencontainers/runc/tests/cmd/sd-helper
	github.com/opencontainers/runc/tests/cmd/seccompagent
)

require (
	github.com/containerd/console v1.0.5 // indirect
	github.com/coreos/go-systemd/v22 v22.7.0 // indirect
	github.com/cpuguy83/go-md2man/v2 v2.0.7 // indirect
	github.com/cyphar/filepath-securejoin v0.7.0 // indirect
	github.com/godbus/dbus/v5 v5.2.2 // indirect
	github.com/moby/sys/mountinfo v0.7.2 // indirect
	github.com/moby/sys/userns v0.2.1 // indirect
	github.com/opencontainers/cgroups v0.1.0 // indirect
	github.com/opencontainers/runc v1.5.2 // indirect
	github.com/opencontainers/runtime-spec v1.3.0 // indirect
	github.com/russross/blackfriday/v2 v2.1.0 // indirect
	github.com/seccomp/libseccomp-golang v0.12.0 // indirect
	github.com/sirupsen/logrus v1.9.4 // indirect
	github.com/urfave/cli v1.22.17 // indirect
	golang.org/x/sys v0.46.0 // indirect
)
