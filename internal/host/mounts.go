package host

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Mount is a line of the list of mounts (proc_pid_mountinfo(5)).
type Mount struct {
	ID, Parent uint64 // ID is that of ResolvedFile.Mount
	// of its file system. On btrfs it differs from what stat reports, where each subvolume has its
	// own
	Device uint64
	Root   string // the file or directory of that file system which is mounted
	Point  string // the mount point, as a real path
}

// maxMounts is the largest size of the list of mounts that is read, in bytes. A busy node's list
// has some hundred kilobytes; one line of an overlay can have 4.
const maxMounts = 64 << 20

// Mounts lists the mounts of the calling thread's mount namespace. The kernel takes 3 µs for each
// mount, so a hot path calls it only where a mount can matter.
func (h Host) Mounts() ([]Mount, error) {
	text, err := ReadFile(filepath.Join(h.Proc, "thread-self/mountinfo"), maxMounts)
	if err != nil {
		return nil, fmt.Errorf("cannot read the list of mounts: %w", err)
	}
	mounts := make([]Mount, 0, bytes.Count(text, []byte("\n")))
	// the paths share the line's memory: a node has hundreds
	for line := range strings.Lines(string(text)) {
		m, err := mountOf(line)
		if err != nil {
			return nil, fmt.Errorf("cannot read the list of mounts: %w: %q", err, line)
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

// mountOf reads a line by its first words: id, parent, major:minor, root, mount point.
func mountOf(line string) (m Mount, err error) {
	var words [5]string
	for i := range words {
		words[i], line, _ = strings.Cut(line, " ")
	}
	major, minor, _ := strings.Cut(words[2], ":")
	var numbers [4]uint64
	for i, word := range [...]string{words[0], words[1], major, minor} {
		if numbers[i], err = strconv.ParseUint(word, 10, 32); err != nil {
			return Mount{}, err
		}
	}
	return Mount{ID: numbers[0], Parent: numbers[1], Device: unix.Mkdev(uint32(numbers[2]),
		uint32(numbers[3])), Root: unescaped(words[3]), Point: unescaped(words[4])}, nil
}

// unescaped decodes a path of that list: the kernel writes blanks, line ends and backslashes as
// three octal digits (mangle_path, fs/seq_file.c).
func unescaped(text string) string {
	if strings.IndexByte(text, '\\') < 0 {
		return text
	}
	var plain []byte
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if c, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				plain, i = append(plain, byte(c)), i+3
				continue
			}
		}
		plain = append(plain, text[i])
	}
	return string(plain)
}

// MountOf returns the device and the mount id that a path leads to, as in ResolvedFile; 0 where
// they are unknown.
func MountOf(path string) (device, mount uint64) {
	var t ResolvedFile
	if t.stat(unix.AT_FDCWD, path, unix.AT_NO_AUTOMOUNT) != nil {
		return 0, 0
	}
	return t.Dev, t.Mount
}
