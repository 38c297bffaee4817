package rig

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// EndMPS ends the MPS daemons that gpuledgerd leaves to its successor, their servers, and launchers
// that are about to become a daemon. The node's gpuledgerd has ended before.
func (n *Node) EndMPS() {
	// It may have started a launcher. One that has not read its command yet finds none; all others
	// are processes now.
	commands, _ := filepath.Glob(filepath.Join(n.Dir, "run/mps/*/orders.json"))
	for _, file := range commands {
		_ = os.Remove(file)
	}
	Within(n.T, 2*time.Minute, "the MPS daemons and their launchers have ended", func() bool {
		all := n.mpsProcesses()
		for _, pid := range all {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(all) == 0
	})
}

// mpsProcesses are the processes of programs of the node's driver, and of launchers.
func (n *Node) mpsProcesses() (pids []int) {
	launcher, driver := "\x00mps\x00"+filepath.Join(n.Dir, "run/mps")+"/", filepath.Join(n.Dir, "driver")+"/"
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err != nil || !Lives(pid) {
			continue
		}
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
		program, _ := os.Readlink(link) // after that: a launcher may become a daemon meanwhile
		if strings.HasPrefix(program, driver) || strings.Contains(string(command), launcher) {
			pids = append(pids, pid)
		}
	}
	return pids
}
