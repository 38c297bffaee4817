module github.com/gpuledger/gpuledger/test/engines/runc-suite-1.1

go 1.16

tool (
	github.com/opencontainers/runc/contrib/cmd/recvtty
	github.com/opencontainers/runc/contrib/cmd/sd-helper
	github.com/opencontainers/runc/contrib/cmd/seccompagent
)

require github.com/opencontainers/runc v1.1.5 // indirect
