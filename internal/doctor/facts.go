package doctor

import (
	"io/fs"
	"time"

	"github.com/gpuledger/gpuledger/internal/configure"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

// Facts are everything that the checks use.
type Facts struct {
	Config PathFacts // the configuration file
	Broken error     // why it cannot be read
	Policy grant.Policy
	Quotas []string        // what is said of quotas that have no effect
	Mode   grant.RulesMode // in force
	Until  time.Time       // of Mode disabled; zero: until enabled

	State, Run PathFacts
	StateFree  uint64 // bytes
	RunFree    uint64
	Programs   []PathFacts          // gpuledger's, which belong beside gpuledger
	Runtimes   []RuntimeFacts       // those of runtime.path that exist
	Unjudged   map[string]PathFacts // by the names in runtime.unjudged

	Kernel  string // its release, such as 6.1.0-18-amd64
	Cgroup  Cgroup
	Majors  map[string]int       // of NVIDIA's devices, by the driver's names
	Driver  string               // the loaded module's version; "" without one
	Devices []PathFacts          // NVIDIA's nodes in /dev
	Sets    host.NodePermissions // what the driver gives them again and again; zero: nothing

	WhyNoShimLimit    string // why the shim limits no container here; "" if it does
	WhyNoComputeShare string // why a grant of mode limit can have no share of compute here; "" if it can
	WhyNoDriverLimit  string // why the driver limits none; "" if it does
	Inventory         grant.Inventory
	InventoryProblem  *grant.Problem
	Gone              []string // the driver's files in the inventory that do not exist any more
	Ledger            ledger.Report
	// false: there is no ledger yet, or the configuration that names its directory is broken
	LedgerLooked bool
	LedgerError  error

	Audit   PathFacts
	Free    uint64 // bytes, in the file system of the audit log
	Engines []engines.Presence
	Default []configure.Default // of engines that were configured with --as-default
	Hooks   []Hook
	CDI     []CDIFacts
	Toolkit []string // those programs of NVIDIA's container toolkit that exist
	Plugins []string // sockets of programs that offer the GPUs to a kubelet, beside gpuledger's
	Daemon  int      // pid of gpuledgerd; 0 if none runs

	Listening Listening // at the address of daemon.listen
}

// PathFacts is a name in the file system and what was found there.
type PathFacts struct {
	Path     string
	Missing  bool
	Error    error // why it cannot be examined, other than that it is missing
	Mode     fs.FileMode
	UID, GID uint32
	Above    []PathFacts // the directories above it that users other than root can change, the nearest first
	Writable bool        // by this process: the file, or if it is missing the nearest existing directory
}

// loose reports whether users other than root can change or replace it. In a sticky directory they
// cannot replace a file of root's.
func (p PathFacts) loose() bool {
	sticky := p.Mode.IsDir() && p.Mode&fs.ModeSticky != 0
	return !p.Missing && (p.UID != 0 || p.Mode.Perm()&0o022 != 0 && !sticky)
}

// RuntimeFacts is a real OCI runtime.
type RuntimeFacts struct {
	PathFacts
	Version string // its version output, in one line
	Failed  error  // why it prints no version
}

// Cgroup is the layout of the cgroup hierarchies.
type Cgroup struct {
	Version int   // of the hierarchy that holds device rules: 1 or 2; 0 if none does
	Hybrid  bool  // both versions are mounted
	Error   error // why device rules cannot be used
}

// Hook is a JSON file in a hooks directory of an engine.
type Hook struct {
	PathFacts
	Program string // the program that it runs
	Gone    bool   // the program does not exist
	Error   error  // why the file cannot be read
}

// CDIFacts is a directory of CDI, or a file in it.
type CDIFacts struct {
	PathFacts
	Kind  string // of a file, as nvidia.com/gpu
	Error error  // why the file cannot be read
}
