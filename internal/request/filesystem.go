package request

import (
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// fileSystemMount examines the directories that a mount of a file system brings: an overlay's
// layers, as Podman's `-v DIR:/x:O` makes them, and every path that a mount of another type names.
func fileSystemMount(f *containerFacts, m *specs.Mount, found *vectorResult) {
	vector, overlay := "mount:"+m.Destination, m.Type == "overlay"
	for _, option := range m.Options {
		for _, dir := range directories(option, overlay) {
			for _, p := range f.sources.named(dir) {
				if source(f, vector, m, option, p, found) {
					return
				}
			}
		}
	}
	if overlay || IsBind(*m) || m.Source == "" {
		return
	}
	for _, p := range f.sources.named(m.Source) {
		if source(f, vector, m, m.Source, p, found) {
			return
		}
	}
}

// directories returns the paths in one option. All readings of it count. An option can hold several
// options behind commas, if it is passed on as text and not by fsconfig(2). An overlay's layers
// stand behind colons, and a backslash makes the next character an ordinary one (ovl_unescape,
// fs/overlayfs/params.c).
func directories(option string, overlay bool) []string {
	var dirs []string
	parts := []string{option}
	if strings.Contains(option, ",") {
		parts = append(parts, strings.Split(option, ",")...)
	}
	for _, part := range parts {
		key, value, _ := strings.Cut(part, "=")
		layer := overlay && slices.Contains(layerKeys, strings.TrimSuffix(key, "+"))
		for _, dir := range append(strings.Split(value, ":"), value) {
			for _, dir := range slices.Compact([]string{dir, unescaped(dir)}) {
				if dir != "" && (layer || filepath.IsAbs(dir)) {
					dirs = append(dirs, dir)
				}
			}
		}
	}
	return dirs
}

var layerKeys = []string{"lowerdir", "upperdir", "workdir", "datadir"}

func unescaped(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) {
			i++
		}
		b.WriteByte(text[i])
	}
	return b.String()
}
