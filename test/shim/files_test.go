package shim

import (
	"debug/elf"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// references are the names that a file of shim/ uses of another: the first key is the file, the
// second is the other one.
type references map[string]map[string][]string

// readReferences compiles each C file of a folder and finds the file that defines each undefined
// symbol of its object file. It compiles without optimisation, so that no reference is removed, and
// with the throttle, which is the variant with all of the files.
func readReferences(t *testing.T, dir string) references {
	t.Helper()
	sources, err := filepath.Glob(filepath.Join(dir, "*.c"))
	if err != nil || len(sources) == 0 {
		t.Fatalf("no C files in %s: %v", dir, err)
	}
	objects := t.TempDir()
	defines, needs := map[string]string{}, map[string][]string{}
	for _, source := range sources {
		file := filepath.Base(source)
		object := filepath.Join(objects, file+".o")
		cmd := exec.Command("cc", "-std=gnu11", "-O0", "-fPIC", "-fvisibility=hidden", "-DTHROTTLE", "-c",
			"-o", object, source)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, s := range symbols(t, object) {
			if s.Section != elf.SHN_UNDEF {
				defines[s.Name] = file
			} else {
				needs[file] = append(needs[file], s.Name)
			}
		}
	}
	uses := references{}
	for file, names := range needs {
		uses[file] = map[string][]string{}
		for _, name := range names {
			if definer, found := defines[name]; found {
				uses[file][definer] = append(uses[file][definer], name)
			}
		}
	}
	return uses
}

// symbols lists the names that an object file shares with others: those that it defines, and those
// that are undefined in it.
func symbols(t *testing.T, object string) []elf.Symbol {
	t.Helper()
	f, err := elf.Open(object)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(s elf.Symbol) bool {
		return elf.ST_BIND(s.Info) == elf.STB_LOCAL ||
			s.Name == ""
	})
}

// cycle finds files that use each other in a cycle, with the first one again at the end; nil if
// there is no cycle.
func (r references) cycle() []string {
	var path []string
	done := map[string]bool{}
	var visit func(file string) []string
	visit = func(file string) []string {
		if i := slices.Index(path, file); i >= 0 {
			return append(slices.Clone(path[i:]), file)
		}
		if done[file] {
			return nil
		}
		done[file] = true
		path = append(path, file)
		for _, used := range slices.Sorted(maps.Keys(r[file])) {
			if found := visit(used); found != nil {
				return found
			}
		}
		path = path[:len(path)-1]
		return nil
	}
	for _, file := range slices.Sorted(maps.Keys(r)) {
		if found := visit(file); found != nil {
			return found
		}
	}
	return nil
}

// describe lists the names that each file of a cycle uses of the next.
func (r references) describe(cycle []string) string {
	var lines strings.Builder
	for i := range len(cycle) - 1 {
		names := r[cycle[i]][cycle[i+1]]
		lines.WriteString("\n" + cycle[i] + " uses " + cycle[i+1] + " by " + strings.Join(names, ", "))
	}
	return lines.String()
}

// TestNoCycleOfFiles: the C files of the shim use each other in one direction, so that each can be
// read and tested with only those below it.
func TestNoCycleOfFiles(t *testing.T) {
	uses := readReferences(t, "../../shim")
	for _, file := range slices.Sorted(maps.Keys(uses)) {
		t.Log(file, "uses", slices.Sorted(maps.Keys(uses[file])))
	}
	if found := uses.cycle(); found != nil {
		t.Errorf("files of shim/ use each other in a cycle:%s", uses.describe(found))
	}
}

// TestACycleOfFilesIsFound: a cycle is found when os.c, which uses no other file, is changed to use
// account.c.
func TestACycleOfFilesIsFound(t *testing.T) {
	dir := t.TempDir()
	sh(t, "mkdir "+dir+"/shim; cp ../../shim/{account.c,os.c,*.h} "+dir+
		`/shim; printf 'int account_devices(void);\nint upwards(void) { return account_devices(); }\n' >>`+
		dir+"/shim/os.c")
	uses := readReferences(t, dir+"/shim")
	found := uses.cycle()
	if want := []string{"account.c", "os.c", "account.c"}; !slices.Equal(found, want) {
		t.Errorf("the cycle is %v, want %v", found, want)
	}
	if text := uses.describe(found); !strings.Contains(text, "os.c uses account.c by account_devices") {
		t.Errorf("it is described as %s", text)
	}
}
