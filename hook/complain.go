package hook

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/oci"
)

// maxComplaint is how much of a complaint we write, in characters: what runtimes wrap around it is
// long enough.
const maxComplaint = 480

// complaint is a refusal in one line, with its hint where that fits: runc shows a hook's standard
// error in the middle of its own sentence.
func complaint(err error) string {
	text, hint := []rune("gpuledger: "+oci.Clean(err.Error())), []rune("; hint: "+oci.Clean(oci.Hint(err)))
	if len(text) > maxComplaint {
		return string(text[:maxComplaint]) + "..."
	}
	if oci.Hint(err) == "" || len(text)+len(hint) > maxComplaint {
		return string(text)
	}
	return string(text) + string(hint)
}

// complain tells why the container does not start, to whoever reads our standard error where that
// is a pipe, and else to the runtime's own, which engines show. To crun the second is the usual
// case: it gives hooks /dev/null and says no more than "error executing hook". But the annotation
// run.oci.hooks.stderr makes it open a file of the tenant's choice for us, as root on the node, and
// a complaint repeats the tenant's words: in /etc/ld.so.preload they would be libraries.
func complain(err error) {
	line := []byte(complaint(err) + "\n")
	if isNameless(int(os.Stderr.Fd())) {
		_, _ = os.Stderr.Write(line)
		return
	}
	if fd, err := stderrOf(os.Getppid()); err == nil {
		_, _ = unix.Write(fd, line)
		_ = unix.Close(fd)
	}
}

// isNameless tells a pipe or a socket that the runtime made for us from what was opened by a path.
// A FIFO lies in no pipefs; a pipe of another process, by /proc/PID/fd, opens with the flags that
// crun opens all of its files with.
func isNameless(fd int) bool {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return false
	}
	if st.Mode&unix.S_IFMT == unix.S_IFSOCK { // no path opens one
		return true
	}
	var in unix.Statfs_t
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_APPEND == 0 && unix.Fstatfs(fd, &in) == nil &&
		in.Type == unix.PIPEFS_MAGIC
}

// stderrOf is another process's standard error, its position in a file shared.
func stderrOf(pid int) (int, error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(process)
	return unix.PidfdGetfd(process, 2, 0)
}
