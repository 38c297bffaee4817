package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// release is what the programs of a driver know, from this major version on.
type release struct {
	major  int
	limits bool // the commands *_device_pinned_mem_limit (CUDA 11.5, driver 495)
	status bool // the command get_server_status
	users  bool // the option -multiuser-server
	open   bool // everybody may change the default thread percentage
	wordy  bool // errors name the command and the privilege; quit removes the FIFO and the pid's file
}

// releases are the drivers that the stand-in can be, oldest first. 535, 550 and 580 are as they
// were seen, 580 with an H100; 470 is as documented.
var releases = []release{
	{major: 470},
	{major: 535, limits: true, open: true},
	{major: 550, limits: true, status: true},
	{major: 580, limits: true, status: true, users: true, wordy: true},
}

// installed is the driver of the root in which this program lies, by the name of its libcuda. If
// there is none, it is the newest.
func installed() release {
	newest := releases[len(releases)-1]
	self, err := os.Executable()
	if err != nil {
		return newest
	}
	usr := filepath.Join(filepath.Dir(self), "..")
	for _, pattern := range []string{"lib*/libcuda.so.*.*", "lib/*/libcuda.so.*.*",
		"lib/*/nvidia/*/libcuda.so.*.*"} {
		found, _ := filepath.Glob(filepath.Join(usr, pattern))
		for _, path := range found {
			_, version, _ := strings.Cut(filepath.Base(path), ".so.")
			text, _, _ := strings.Cut(version, ".")
			if major, err := strconv.Atoi(text); err == nil {
				return releaseOf(major)
			}
		}
	}
	return newest
}

func releaseOf(major int) release {
	is := releases[0]
	for _, r := range releases {
		if r.major <= major {
			is = r
		}
	}
	return is
}
