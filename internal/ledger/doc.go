// Package ledger is the node's book of grants: files that any number of processes read without a
// lock and write under one, and that an operator can read with ls and cat.
//
//	<state>/grants/<id>.json          one grant; the file's rename is the moment when the grant exists
//	<state>/owners/<sha256 of owner>  link to the grant of a pod or a claim
//	<state>/gpus/<uuid>/<id>          link to a grant on the GPU; says what a damaged grant was about
//	<run>/lock                        the one lock
//	<run>/bindings/<key>.json         a grant in use by one container; key is of runtime root and container id
//	<run>/grants/<id>/<key>           link to a binding of the grant
//	<run>/outside.json                memory that the watch found in use outside the ledger
//
// <state> survives a reboot; what lies in <run> counts only in the boot that wrote it. Links are
// derived: a crash may leave one too many, never a grant without its own, and Check repairs them. A
// reader believes no link by itself.
//
// Each change is durable when its call returns; Update is a critical section, not a transaction: an
// error from its function undoes nothing that was done before.
package ledger
