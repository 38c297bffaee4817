package ledger

import "github.com/gpuledger/gpuledger/internal/grant"
import "os"
import "strconv"
import "strings"

// startOf reads a process as its creator would read itself.
func startOf(pid int) (grant.Process, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return grant.Process{}, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return grant.Process{PID: pid, Start: start}, err
}
