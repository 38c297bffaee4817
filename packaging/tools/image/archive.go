package main

import (
	"archive/tar"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// archive writes a directory as a tar: sorted, owned by root, with one time.
func archive(w io.Writer, root string, made time.Time) error {
	to := tar.NewWriter(w)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		return add(to, root, path, entry, made)
	})
	if err != nil {
		return err
	}
	return to.Close()
}

func add(to *tar.Writer, root, path string, entry fs.DirEntry, made time.Time) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	var target string
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	if header.Name, err = filepath.Rel(root, path); err != nil {
		return err
	}
	header.ModTime, header.Uid, header.Gid, header.Uname, header.Gname = made, 0, 0, "", ""
	if err := to.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
		return err
	}
	content, err := os.ReadFile(path)
	if err == nil {
		_, err = to.Write(content)
	}
	return err
}
