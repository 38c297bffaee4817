package doctor

import (
	"io/fs"
	"time"

	"github.com/gpuledger/gpuledger/internal/configure"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

// Facts are all that the checks look at.
type Facts struct {
	Config Place // the configuration file
	Broken error // why it cannot be read
	Policy grant.Policy
	Mode   grant.RulesMode // in force
	Until  time.Time       // of Mode disabled; zero: until enabled

	State, Run Place
	StateFree  uint64 // bytes
	RunFree    uint64
	Programs   []Place          // ours, that belong beside gpuledger
	Runtimes   []Runtime        // of runtime.path, as far as they are there
	Unjudged   map[string]Place // by the names in runtime.unjudged

	Kernel  string // its release, as 6.1.0-18-amd64
	Cgroup  Cgroup
	Majors  map[string]int // of NVIDIA's devices, by the driver's names
	Driver  string         // version of the loaded module, "" without one
	Devices []Place        // NVIDIA's nodes in /dev

	Limitless        string // why the shim limits no container here; "" where it does
	Unkept           string // why a grant of mode limit can have no share of compute here; "" where it can
	Driverless       string // why the driver limits none; "" where it does
	Inventory        grant.Inventory
	InventoryProblem *grant.Problem
	Ledger           ledger.Report
	LedgerLooked     bool // false: there is nothing yet, or the configuration that says where is broken
	LedgerError      error

	Audit   Place
	Free    uint64 // bytes, where the audit log lies
	Engines []configure.Presence
	Default []configure.Default // of engines that were configured with --as-default
	Hooks   []Hook
	CDI     []Spec
	Toolkit []string // programs of NVIDIA's container toolkit that are there
	Daemon  int      // pid of gpuledgerd, 0 where none runs

	Listening Listening // on the address of daemon.listen
}

// Place is a name in the file system.
type Place struct {
	Path     string
	Missing  bool
	Error    error // why nothing can be told of it, other than that it is missing
	Mode     fs.FileMode
	UID      uint32
	Above    []Place // the directories over it that others than root can change, the nearest first
	Writable bool    // for this process: the file, or where it is missing the nearest directory that is there
}

// loose reports whether others than root can change what stands there. In a sticky directory nobody
// replaces what is root's.
func (p Place) loose() bool {
	sticky := p.Mode.IsDir() && p.Mode&fs.ModeSticky != 0
	return !p.Missing && (p.UID != 0 || p.Mode.Perm()&0o022 != 0 && !sticky)
}

// Runtime is a real OCI runtime.
type Runtime struct {
	Place
	Version string // what it says of itself, in one line
	Failed  error  // why it does not
}

// Cgroup is how cgroups are laid out.
type Cgroup struct {
	Version int   // of the hierarchy that holds device rules: 1 or 2; 0 where none does
	Hybrid  bool  // both are there
	Error   error // why device rules cannot be used
}

// Hook is a JSON file in a hooks directory of an engine.
type Hook struct {
	Place
	Program string // what it runs
	Gone    bool   // the program is not there
	Error   error  // why the file cannot be read
}

// Spec is a directory of CDI, or a file in it.
type Spec struct {
	Place
	Kind  string // of a file, as nvidia.com/gpu
	Error error  // why the file cannot be read
}
