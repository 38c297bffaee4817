package dra

import (
	"errors"
	"net"
	"os"
	"testing"
)

func TestSocketsThatNobodyServesAreRemoved(t *testing.T) {
	t.Chdir(t.TempDir()) // a socket's path must be short
	if err := errors.Join(os.Mkdir("registry", 0o700), os.Mkdir("data", 0o700)); err != nil {
		t.Fatal(err)
	}
	kept := map[string]bool{
		"registry/gpuledger.dev-uid-of-a-pod-that-was-killed-reg.sock": false, "data/dra-uid-of-a-pod-that-was-killed.sock": false, "data/dra.sock": false,
		"registry/gpuledger.dev-uid-2-reg.sock": true, "data/dra-uid-2.sock": true, // of a driver that runs
		"registry/vendor.example-reg.sock": true,
	}
	for path, kept := range kept {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if !kept || path == "registry/vendor.example-reg.sock" {
			l.(*net.UnixListener).SetUnlinkOnClose(false) // as when it is killed
			l.Close()
		} else {
			defer l.Close()
		}
	}
	if err := RemoveSockets("registry", "data"); err != nil {
		t.Fatal(err)
	}
	for path, kept := range kept {
		if _, err := os.Lstat(path); (err == nil) != kept {
			t.Errorf("%s is there: %v, want %v", path, err == nil, kept)
		}
	}
}
