package configure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/filetree"
)

// ourProgram is the wrapper's name. The names of the links to it begin with it.
const ourProgram = "gpuledger-runtime"

// wrapperLink is the path by which the engine calls the wrapper at a path.
func wrapperLink(in engines.Installation, wrapper string) string {
	return filepath.Join(filepath.Dir(wrapper), ourProgram+"."+in.Of().Name)
}

// linkRuntime plans the engine's own link to the wrapper. It keeps a link that already leads there,
// such as one from a package.
func linkRuntime(in engines.Installation, wrapper string) ([]FileChange, error) {
	runtime, err := in.System.Resolve(wrapper)
	if err != nil {
		return nil, err
	}
	info, err := os.Lstat(in.System.Host(runtime))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("cannot find %s: name the wrapper by --runtime", wrapper)
	case err != nil:
		return nil, fmt.Errorf("cannot find %s: %w", wrapper, cause(err))
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return nil, fmt.Errorf("cannot use %s: it is no program", wrapper)
	}
	path := wrapperLink(in, wrapper)
	if leads, err := in.System.Resolve(path); err != nil || leads == runtime {
		return nil, err
	}
	dir, err := in.System.Resolve(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	name := filepath.Join(dir, filepath.Base(path))
	before, err := in.System.Read(name)
	if err != nil {
		return nil, err
	}
	if before.Kind == filetree.Regular {
		return nil, fmt.Errorf("cannot make the link %s: a file is in its place", path)
	}
	return []FileChange{{Path: path, Action: "link", name: name, before: before,
		after: filetree.FileContent{Kind: filetree.Link, Target: filepath.Base(wrapper)}}}, nil
}
