package node

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// replacedDriver returns the problem of an inventory whose libcuda is gone: the driver's packages
// were replaced, and the old module stays loaded until the next boot. Packages replace all files
// together, so one is looked at. A container that was created before (JudgeCreated) has its files;
// a hook has yet to inject them. A simulated node has no module.
func replacedDriver(n *Node, f *createFacts) *grant.Problem {
	if n.Policy.Inventory.Source != grant.NVML || f.AnyRoot {
		return nil
	}
	d := f.gpu.inventory.Driver
	i := slices.IndexFunc(d.Files, func(file grant.DriverFile) bool {
		return file.Kind == grant.FileLibrary && file.Bits == 64 &&
			slices.Contains(file.Names, "libcuda.so.1")
	})
	if i < 0 {
		return nil
	}
	path := d.Source(d.Files[i])
	if !errors.Is(unix.Access(path, unix.F_OK), unix.ENOENT) {
		return nil
	}
	return &grant.Problem{Code: grant.InventoryStale,
		Message: fmt.Sprintf("the driver's files were replaced or removed: %s is gone, and driver %s is "+
			"loaded", path, d.Version), Hint: hintReplaced}
}

// hintReplaced is for a driver whose files are not those of the loaded module. A refresh alone
// would leave the files of another version out.
const hintReplaced = "reboot the node, or load the modules of the new driver and run `gpuledger inventory " +
	"refresh`"
