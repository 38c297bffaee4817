package driver

import (
	"bytes"
	"encoding/binary"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// The cache of glibc's loader (sysdeps/generic/dl-cache.h, struct cache_file_new): a header,
// entries, strings. Older systems put a cache of another format before it.
const (
	cachePath   = "/etc/ld.so.cache"
	cacheMagic  = "glibc-ld.so.cache1.1"
	cacheHeader = 48
	cacheEntry  = 24
	maxCache    = 64 << 20
)

// cachedDirs returns the directories in which the driver root's own cache has libcuda or
// libnvidia-ml, for an installation at an unknown path. A cache that cannot be read has none.
func (s *search) cachedDirs() []string {
	f, err := s.open(cachePath)
	if err != nil {
		return nil
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxCache))
	if err != nil {
		return nil
	}
	var dirs []string
	for _, path := range cachedPaths(content) {
		dir := filepath.Dir(path)
		if name := stem(path); (name == "libcuda" || name == "libnvidia-ml") && filepath.IsAbs(dir) &&
			!slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// cachedPaths reads the paths of all libraries in a cache.
func cachedPaths(content []byte) []string {
	at := bytes.Index(content, []byte(cacheMagic))
	if at < 0 || len(content)-at < cacheHeader {
		return nil
	}
	content = content[at:]
	count := int(binary.LittleEndian.Uint32(content[len(cacheMagic):]))
	if count > (len(content)-cacheHeader)/cacheEntry {
		return nil
	}
	var paths []string
	for i := range count {
		value := binary.LittleEndian.Uint32(content[cacheHeader+i*cacheEntry+8:])
		if int(value) >= len(content) {
			return nil
		}
		path, _, found := strings.Cut(string(content[value:min(len(content), int(value)+maxPath)]), "\x00")
		if found {
			paths = append(paths, path)
		}
	}
	return paths
}

const maxPath = 4096
