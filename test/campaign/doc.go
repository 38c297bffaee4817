// Package campaign runs containers on a node and breaks the node meanwhile. Workers create, exec,
// kill and delete real containers through runc, crun, containerd and Podman, with grants of every
// mode and without. Programs are killed at marked lines and at any time, file systems fill up and
// return errors, clocks jump, the boot id and the inventory change, single bits of the ledger flip.
// After each round every living container is scanned from the inside and compared with the ledger.
//
// make torture runs it for TIME, make soak the same lives without faults. go test runs one round of
// each fault.
package campaign
