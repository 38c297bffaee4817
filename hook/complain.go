package hook

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/oci"
)

// maxComplaint is how much of a complaint we write, in characters: what runtimes wrap around it is long enough.
const maxComplaint = 480

// complaint is a refusal in one line, with its hint where that fits: runc shows a hook's standard error in the middle of
// its own sentence.
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

// complain tells why the container does not start. crun gives hooks /dev/null for standard error and says no more than
// "error executing hook": there the line goes to crun's own standard error, which engines show.
func complain(err error) {
	line := []byte(complaint(err) + "\n")
	if isNull(os.Stderr) {
		if fd, err := stderrOf(os.Getppid()); err == nil {
			_, _ = unix.Write(fd, line)
			_ = unix.Close(fd)
		}
		return
	}
	_, _ = os.Stderr.Write(line)
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

// isNull tells the null device (Documentation/admin-guide/devices.txt: 1 char, 3).
func isNull(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3)
}
