package mps

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// link is a name below a directory and the driver's file that it leads to.
type link struct{ name, target string }

// driverLinks are the links by which NVIDIA's programs find each other and their libraries. Both
// programs get the names by which they know each other, in one directory for PATH: an installation
// can have them in two, and behind links with other names. Below a driver root of its own, the
// driver's 64-bit libraries get a directory with nothing else in it: the root's directory of
// libraries has a C library too, which the node's loader cannot use (docs/adr/0086).
func driverLinks(d grant.Driver) ([]link, error) {
	var links []link
	for _, name := range []string{grant.MPSControl, grant.MPSServer} {
		f, is := d.Program(name)
		if !is {
			return nil, fmt.Errorf("the driver's files have no %s", name)
		}
		links = append(links, link{"bin/" + name, d.Source(f)})
	}
	if d.Root == "/" {
		return links, nil
	}
	for _, f := range d.Files {
		if f.Kind != grant.FileLibrary || f.Bits != 64 {
			continue
		}
		for _, name := range append(slices.Clone(f.Names), filepath.Base(f.Path)) {
			l := link{"lib/" + name, d.Source(f)}
			if !strings.Contains(name, "/") && !slices.Contains(links, l) {
				links = append(links, l)
			}
		}
	}
	return links, nil
}

// linkDriver makes a directory of links to the driver's files in a daemon's directory, and returns
// its path. Its name is a hash of the links: a driver that was installed since gets another one,
// and a daemon that runs keeps its own.
func linkDriver(dir string, d grant.Driver) (string, error) {
	links, err := driverLinks(d)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Append(nil, links))
	path := filepath.Join(dir, "driver-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Lstat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(dir, "links-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := makeLinks(work, links); err != nil {
		return "", fmt.Errorf("cannot make the links to the driver's files: %w", err)
	}
	return path, os.Rename(work, path)
}

func makeLinks(dir string, links []link) error {
	for _, name := range []string{"bin", "lib"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	for _, l := range links {
		// two files can have one name; the first is the one that programs find elsewhere, too
		err := os.Symlink(l.target, filepath.Join(dir, l.name))
		if err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}
