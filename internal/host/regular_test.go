package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReadRegularReadsNothingButARegularFile(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.WriteFile(path("text"), []byte("12345"), 0o600), os.WriteFile(path("empty"), nil, 0o600),
		os.Symlink("text", path("link")), os.Mkdir(path("directory"), 0o700),
		unix.Mkfifo(path("pipe"), 0o600), // an open that waits would never return
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name  string
		limit int64
		want  string
		fails string
	}{
		{"text", 5, "12345", ""},
		{"text", 4, "", "it has 5 bytes, more than 4"},
		{"empty", 0, "", ""},
		{"link", 5, "", "too many levels of symbolic links"},
		{"directory", 1 << 20, "", "it is not a regular file"},
		{"pipe", 5, "", "it is not a regular file"},
	} {
		data, err := ReadRegular(path(c.name), c.limit)
		if string(data) != c.want || (err != nil) != (c.fails != "") ||
			err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s, up to %d bytes: %q (%v), want %q (%s)", c.name, c.limit, data, err, c.want, c.fails)
		}
	}
	if _, err := ReadRegular(path("none"), 5); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
