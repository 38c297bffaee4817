package rootfs

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"strings"
)

// The format of the cache of glibc's loader (sysdeps/generic/dl-cache.h): a header, entries in the
// order of a binary search, and strings. Since 2.33 an extension names the subdirectories of
// glibc-hwcaps. Before 2.32 ldconfig also wrote the old format, followed by the new one. Every
// glibc since 2.2 reads a file with the new format alone, and this package writes that.
const (
	newMagic  = "glibc-ld.so.cache1.1"
	newHeader = 48
	newEntry  = 24
	oldMagic  = "ld.so-1.7.0"
	oldHeader = 16
	oldEntry  = 12
	extension = 0xeaa42174 // cache_extension_magic
	hwcapsTag = 1          // cache_extension_tag_glibc_hwcaps
	// DL_CACHE_HWCAP_EXTENSION: the low half of an entry's hwcap is an index into the extension's
	// names
	hwcapNamed  = 1 << 62
	littleFlag  = 2       // cache_file_new_flags_endian_little
	maxCache    = 8 << 20 // bytes; a full desktop's has 300 KiB
	maxEntries  = 64 << 10
	maxString   = 4096
	maxText     = 4 << 20 // bytes of all names and paths, which may overlap
	maxSections = 16
	maxHwcaps   = 64
)

// cacheEntry is one library of a cache.
type cacheEntry struct {
	flags     int32  // the kind of library and its architecture
	name      string // the name that programs open
	path      string
	osVersion uint32
	hwcap     uint64 // never with hwcapNamed; hwcaps has the name
	hwcaps    string // its subdirectory of glibc-hwcaps
}

// errUnknownFormat is the error for a cache that ldconfig did not write.
var errUnknownFormat = errors.New("it is no cache of a format that is known")

// parse parses a cache. A tenant wrote it: every number in it may be wrong. An empty cache has no
// entries.
func parse(content []byte) ([]cacheEntry, error) {
	switch {
	case len(content) == 0:
		return nil, nil
	case len(content) > maxCache:
		return nil, errUnknownFormat
	case bytes.HasPrefix(content, []byte(newMagic)):
		return parseNew(content)
	case !bytes.HasPrefix(content, []byte(oldMagic)) || len(content) < oldHeader:
		return nil, errUnknownFormat
	}
	count := binary.LittleEndian.Uint32(content[12:])
	if int64(count) > int64(len(content)-oldHeader)/oldEntry || count > maxEntries {
		return nil, errUnknownFormat
	}
	end := oldHeader + int(count)*oldEntry
	if behind := (end + 7) &^ 7; behind < len(content) &&
		bytes.HasPrefix(content[behind:], []byte(newMagic)) {
		return parseNew(content[behind:])
	}
	return parseEntries(content[oldHeader:end], oldEntry, content[end:])
}

func parseNew(content []byte) ([]cacheEntry, error) {
	if len(content) < newHeader {
		return nil, errUnknownFormat
	}
	count := binary.LittleEndian.Uint32(content[20:])
	if endian := content[28] & 3; int64(count) > int64(len(content)-newHeader)/newEntry ||
		count > maxEntries || endian != 0 && endian != littleFlag {
		return nil, errUnknownFormat
	}
	entries, err := parseEntries(content[newHeader:newHeader+int(count)*newEntry], newEntry, content)
	if err != nil {
		return nil, err
	}
	return entries, nameHwcaps(entries, content)
}

// parseEntries parses entries whose names and paths are offsets into strings.
func parseEntries(table []byte, size int, pool []byte) ([]cacheEntry, error) {
	texts := string(pool) // one copy of all strings: a create pays for each allocation
	entries, length := make([]cacheEntry, 0, len(table)/size), 0
	for ; len(table) > 0; table = table[size:] {
		name, ok := text(texts, binary.LittleEndian.Uint32(table[4:]))
		path, ok2 := text(texts, binary.LittleEndian.Uint32(table[8:]))
		if length += len(name) + len(path); !ok || !ok2 || length > maxText {
			return nil, errUnknownFormat
		}
		e := cacheEntry{flags: int32(binary.LittleEndian.Uint32(table)), name: name, path: path}
		if size == newEntry {
			e.osVersion, e.hwcap = binary.LittleEndian.Uint32(table[12:]),
				binary.LittleEndian.Uint64(table[16:])
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func text(content string, at uint32) (string, bool) {
	if int64(at) >= int64(len(content)) {
		return "", false
	}
	content = content[at:min(int64(len(content)), int64(at)+maxString)]
	return cutText(content)
}

func cutText(content string) (string, bool) {
	s, _, found := strings.Cut(content, "\x00")
	return s, found
}

// nameHwcaps replaces the numbers of glibc-hwcaps subdirectories in entries by their names.
func nameHwcaps(entries []cacheEntry, content []byte) error {
	names, err := hwcapsOf(content)
	if err != nil {
		return err
	}
	for i := range entries {
		e := &entries[i]
		if e.hwcap&hwcapNamed == 0 {
			continue
		}
		index := uint32(e.hwcap)
		if int64(index) >= int64(len(names)) || names[index] == "" {
			return errUnknownFormat
		}
		e.hwcaps, e.hwcap = names[index], 0
	}
	return nil
}

// hwcapsOf returns the names of the subdirectories of glibc-hwcaps in a cache's extension.
func hwcapsOf(content []byte) ([]string, error) {
	at := int64(binary.LittleEndian.Uint32(content[32:]))
	if at == 0 {
		return nil, nil
	}
	if at+8 > int64(len(content)) || binary.LittleEndian.Uint32(content[at:]) != extension {
		return nil, errUnknownFormat
	}
	count := int64(binary.LittleEndian.Uint32(content[at+4:]))
	if count > maxSections || at+8+count*16 > int64(len(content)) {
		return nil, errUnknownFormat
	}
	for section := content[at+8:]; count > 0; count, section = count-1, section[16:] {
		if binary.LittleEndian.Uint32(section) == hwcapsTag {
			return texts(content, int64(binary.LittleEndian.Uint32(section[8:])),
				int64(binary.LittleEndian.Uint32(section[12:])/4))
		}
	}
	return nil, nil
}

// texts returns strings whose offsets follow one another.
func texts(content []byte, at, count int64) ([]string, error) {
	if count > maxHwcaps || at+4*count > int64(len(content)) {
		return nil, errUnknownFormat
	}
	all, whole := make([]string, count), string(content)
	for i := range all {
		var ok bool
		if all[i], ok = text(whole, binary.LittleEndian.Uint32(content[at+4*int64(i):])); !ok {
			return nil, errUnknownFormat
		}
	}
	return all, nil
}

// encode returns a cache in the new format. The entries must be sorted.
func encode(entries []cacheEntry) []byte {
	var hwcaps []string
	for _, e := range entries {
		if e.hwcaps != "" && !slices.Contains(hwcaps, e.hwcaps) {
			hwcaps = append(hwcaps, e.hwcaps)
		}
	}
	slices.Sort(hwcaps) // as ldconfig sorts them
	table := newHeader + len(entries)*newEntry
	p := pool{base: table, bytes: make([]byte, 0, 64*len(entries))}
	out := make([]byte, newHeader, table)
	copy(out, newMagic)
	binary.LittleEndian.PutUint32(out[20:], uint32(len(entries)))
	out[28] = littleFlag
	for _, e := range entries {
		if e.hwcaps != "" {
			e.hwcap = hwcapNamed | uint64(slices.Index(hwcaps, e.hwcaps))
		}
		out = binary.LittleEndian.AppendUint32(out, uint32(e.flags))
		path := p.add(e.path)
		name := path + uint32(len(e.path)-len(e.name)) // most paths end in the name
		if !strings.HasSuffix(e.path, e.name) {
			name = p.add(e.name)
		}
		out = binary.LittleEndian.AppendUint32(out, name)
		out = binary.LittleEndian.AppendUint32(out, path)
		out = binary.LittleEndian.AppendUint32(out, e.osVersion)
		out = binary.LittleEndian.AppendUint64(out, e.hwcap)
	}
	offsets := make([]uint32, len(hwcaps))
	for i, name := range hwcaps {
		offsets[i] = p.add(name)
	}
	binary.LittleEndian.PutUint32(out[24:], uint32(len(p.bytes)))
	out = append(out, p.bytes...)
	if len(hwcaps) == 0 {
		return out
	}
	for len(out)%4 != 0 {
		out = append(out, 0)
	}
	binary.LittleEndian.PutUint32(out[32:], uint32(len(out)))
	for _, word := range append([]uint32{extension, 1, hwcapsTag, 0, uint32(len(out) + 24),
		uint32(4 * len(hwcaps))}, offsets...) {
		out = binary.LittleEndian.AppendUint32(out, word)
	}
	return out
}

// pool has the strings of a cache.
type pool struct {
	base  int
	bytes []byte
}

func (p *pool) add(s string) uint32 {
	at := p.base + len(p.bytes)
	p.bytes = append(append(p.bytes, s...), 0)
	return uint32(at)
}

// compare orders entries as ldconfig does (elf/cache.c, compare): names in descending order, and
// for one name the subdirectories of glibc-hwcaps first. Equal entries keep their order; the loader
// uses the first.
func compare(a, b cacheEntry) int {
	if c := compareNames(b.name, a.name); c != 0 {
		return c
	}
	switch {
	case a.flags != b.flags:
		return cmp.Compare(b.flags, a.flags)
	case (a.hwcaps == "") != (b.hwcaps == ""):
		if a.hwcaps != "" {
			return -1
		}
		return 1
	case a.hwcaps != b.hwcaps:
		return strings.Compare(a.hwcaps, b.hwcaps)
	case a.hwcap != b.hwcap:
		if a.hwcap > b.hwcap {
			return -1
		}
		return 1
	}
	return 0
}

// compareNames compares names as the loader does (elf/dl-cache.c, _dl_cache_libcmp): numbers by
// value, and after other characters. The loader does not find names in a cache with another order.
func compareNames(a, b string) int {
	at := func(s string) byte {
		if s == "" {
			return 0
		}
		return s[0]
	}
	same := 0 // a common beginning decides nothing, except for a number that goes on
	for same < len(a) && same < len(b) && a[same] == b[same] {
		same++
	}
	for same > 0 && isDigit(a[same-1]) {
		same--
	}
	a, b = a[same:], b[same:]
	for a != "" {
		switch digitA, digitB := isDigit(a[0]), isDigit(at(b)); {
		case digitA && digitB:
			var valueA, valueB int32 // an int in C, with the same overflow
			valueA, a = number(a)
			valueB, b = number(b)
			if valueA != valueB {
				return int(int64(valueA) - int64(valueB))
			}
		case digitA:
			return 1
		case digitB:
			return -1
		case a[0] != at(b):
			return int(int8(a[0])) - int(int8(at(b)))
		default:
			a, b = a[1:], b[1:]
		}
	}
	return -int(int8(at(b)))
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func number(s string) (value int32, rest string) {
	for s != "" && isDigit(s[0]) {
		value, s = value*10+int32(s[0]-'0'), s[1:]
	}
	return value, s
}

// flagsOf returns the flags of a library: ELF for libc6 on this machine's architecture
// (sysdeps/generic/ldconfig.h). known is false for an unknown combination.
func flagsOf(bits int) (flags int32, known bool) {
	switch {
	case runtime.GOARCH == "amd64" && bits == 64:
		return 0x0303, true
	case runtime.GOARCH == "amd64" && bits == 32:
		return 0x0003, true
	case runtime.GOARCH == "arm64" && bits == 64:
		return 0x0a03, true
	case runtime.GOARCH == "arm64" && bits == 32:
		return 0x0903, true
	}
	return 0, false
}
