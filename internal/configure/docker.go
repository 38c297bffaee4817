package configure

import (
	"fmt"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/filetree"
)

// editDocker changes daemon.json itself, because Docker has no drop-in files.
func editDocker(c engines.Docker, w wanted) (fileEdits, error) {
	var e fileEdits
	if err := dockerFlags(w); err != nil {
		return e, err
	}
	set := configfile.Setter{Document: c.JSON}
	set.To(w.link, "runtimes", engines.Handler, "path")
	if w.asDefault {
		set.To(engines.Handler, "default-runtime")
	}
	set.To(true, "features", "cdi") // off by default before Docker 28.3
	setCDIDirs(&set, w.was.Tree, "cdi-spec-dirs", []string{"cdi-spec-dirs"})
	if set.Err != nil {
		return e, fmt.Errorf("cannot edit %s:%w", c.Path, set.Err)
	}
	e.noteConfig(w, "the environment of the containerd that Docker uses")
	e.write(c.Path, c.Bytes())
	return e, nil
}

// dockerFlags refuses if dockerd runs with a flag for what daemon.json will say, or if a unit of
// systemd gives it one. dockerd does not start with a directive in both places. A reload says so
// only in its log. A unit can take its flags from the files that EnvironmentFile= names.
func dockerFlags(w wanted) error {
	if flag := conflicting(w.in.Arguments(), w.asDefault); flag != "" {
		return fmt.Errorf("cannot configure docker: dockerd runs with %s, which must not stand in "+
			"daemon.json too; move it from its arguments into %s, and restart dockerd", flag,
			w.in.MainFile())
	}
	for _, path := range dockerUnits(w.in.System) {
		_, c, err := w.in.System.Load(path)
		if err != nil {
			return err
		}
		lines := directives(c.Data)
		if err := w.refuseFlags(path, lines); err != nil {
			return err
		}
		for _, file := range environmentFiles(lines) {
			_, c, _ := w.in.System.Load(file) // if it cannot be read, dockerd gets nothing from it
			if err := w.refuseFlags(file, directives(c.Data)); err != nil {
				return err
			}
		}
	}
	return nil
}

// dockerUnits are the places of Docker's unit and of the files that add to it.
func dockerUnits(in filetree.System) (units []string) {
	for _, dir := range []string{"/usr/lib/systemd/system", "/lib/systemd/system", "/etc/systemd/system"} {
		units = append(units, dir+"/docker.service")
		units = append(units, in.Glob(dir+"/docker.service.d/*.conf")...)
	}
	return units
}

// refuseFlags refuses if a file of systemd's gives dockerd a flag for what daemon.json will say.
func (w wanted) refuseFlags(path string, lines []string) error {
	flag := conflicting(strings.Fields(strings.Join(lines, " ")), w.asDefault)
	if flag == "" {
		return nil
	}
	return fmt.Errorf("cannot configure docker: %s starts dockerd with %s, which must not stand in "+
		"daemon.json too; move it from there into %s", path, flag, w.in.MainFile())
}

// directives are the lines of a unit or of an environment file, without comments.
func directives(text []byte) (lines []string) {
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ";") {
			lines = append(lines, line)
		}
	}
	return lines
}

// environmentFiles are the files from which a unit takes variables. A '-' before a name means that
// the file may be missing.
func environmentFiles(lines []string) (files []string) {
	for _, line := range lines {
		if key, value, _ := strings.Cut(line, "="); strings.TrimSpace(key) == "EnvironmentFile" {
			files = append(files, strings.TrimPrefix(strings.Trim(value, "\"' \t"), "-"))
		}
	}
	return files
}

// quotes are taken out of a line's words.
var quotes = strings.NewReplacer(`"`, "", `'`, "")

// conflicting is the first flag of a command line for what configure writes into daemon.json. A
// word can also be a variable of systemd's, NAME=FLAG.
func conflicting(words []string, asDefault bool) string {
	for _, word := range words {
		word = quotes.Replace(word)
		if i := strings.Index(word, "=--"); i >= 0 && !strings.HasPrefix(word, "-") {
			word = word[i+1:]
		}
		flag, _, _ := strings.Cut(word, "=")
		switch flag {
		case "--add-runtime", "--feature":
			return flag
		case "--default-runtime":
			if asDefault {
				return flag
			}
		}
	}
	return ""
}
