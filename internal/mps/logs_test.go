package mps

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLogsAreKeptShort: and their ends are kept.
func TestLogsAreKeptShort(t *testing.T) {
	for name, flags := range map[string]int{"one that appends": os.O_APPEND, "one that does not": 0} {
		t.Run(name, func(t *testing.T) {
			d := &daemon{dir: t.TempDir()}
			if err := os.Mkdir(filepath.Join(d.dir, "log"), 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(d.dir, "log/server.log")
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flags, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			line := bytes.Repeat([]byte("x"), 1<<20-1)
			for said := range 20 {
				if _, err := fmt.Fprintf(f, "%s\n%d\n", line, said); err != nil {
					t.Fatal(err)
				}
				if err := shortenLogs(d.dir); err != nil {
					t.Fatal(err)
				}
				var now, before unix.Stat_t
				_ = unix.Stat(path+".1", &before)
				if err := unix.Stat(path, &now); err != nil ||
					(now.Blocks+before.Blocks)*512 > maxLog+2*keptLog {
					t.Fatalf("after %d MiB there are %d and %d bytes (%v)", said+1, now.Blocks*512,
						before.Blocks*512, err)
				}
			}
			kept, err := os.ReadFile(path + ".1")
			now, e := os.ReadFile(path)
			if all := append(kept, now...); err != nil || e != nil ||
				!bytes.HasSuffix(all, []byte("\n19\n")) || !bytes.Contains(kept, []byte("xxx\n")) ||
				len(kept) > keptLog {
				t.Errorf("of what was said %d bytes are kept and %d there (%v, %v)",
					len(kept), len(now), err, e)
			}
		})
	}
}

// TestLogsThatAreNone: links are left alone, because they lead to other files.
func TestLogsThatAreNone(t *testing.T) {
	d := &daemon{dir: t.TempDir()}
	elsewhere := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(elsewhere, make([]byte, 2*maxLog), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(d.dir, "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(d.dir, "log/control.log")); err != nil {
		t.Fatal(err)
	}
	if err := shortenLogs(d.dir); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(elsewhere); err != nil || info.Size() != 2*maxLog {
		t.Errorf("another file was emptied (%v)", err)
	}
}
