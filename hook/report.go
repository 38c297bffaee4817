package hook

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/oci"
)

// maxErrorLine is the largest length of a reported error, in characters. Runtimes add much text
// around it.
const maxErrorLine = 480

// errorLine returns a refusal as one line, with its hint if there is room. runc prints a hook's
// standard error in the middle of its own sentence.
func errorLine(err error) string {
	text, hint := []rune("gpuledger: "+oci.Clean(err.Error())), []rune("; hint: "+oci.Clean(oci.Hint(err)))
	if len(text) > maxErrorLine {
		return string(text[:maxErrorLine]) + "..."
	}
	if oci.Hint(err) == "" || len(text)+len(hint) > maxErrorLine {
		return string(text)
	}
	return string(text) + string(hint)
}

// reportError writes why the container does not start. It writes to standard error if that is a
// pipe or a socket, otherwise to the runtime's standard error, which engines show. With crun the
// second is usual: crun gives hooks /dev/null and prints only "error executing hook".
// The annotation run.oci.hooks.stderr makes crun open a file of the tenant's choice for the hook,
// as root on the node. An error repeats the tenant's words: in /etc/ld.so.preload they would be
// libraries.
func reportError(err error) {
	line := []byte(errorLine(err) + "\n")
	if isNameless(int(os.Stderr.Fd())) {
		_, _ = os.Stderr.Write(line)
		return
	}
	if fd, err := stderrOf(os.Getppid()); err == nil {
		_, _ = unix.Write(fd, line)
		_ = unix.Close(fd)
	}
}

// isNameless reports whether a descriptor is a pipe or a socket that the runtime made for the hook,
// and not a file opened by a path. A FIFO is not in pipefs. crun opens all files with O_APPEND, so
// a pipe of another process, opened by /proc/PID/fd, has that flag.
func isNameless(fd int) bool {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return false
	}
	if st.Mode&unix.S_IFMT == unix.S_IFSOCK { // an open by path cannot return one
		return true
	}
	var in unix.Statfs_t
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_APPEND == 0 && unix.Fstatfs(fd, &in) == nil &&
		in.Type == unix.PIPEFS_MAGIC
}

// stderrOf returns a copy of another process's standard error, which shares its file position.
func stderrOf(pid int) (int, error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(process)
	return unix.PidfdGetfd(process, 2, 0)
}
