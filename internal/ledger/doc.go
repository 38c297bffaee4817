// Package ledger keeps the grants of a node and their bindings in files. Any number of processes
// read the files without a lock and write them under one, and an operator can read them with ls and
// cat.
//
//	<state>/grants/<id>.json          one grant; the file's rename is the moment when the grant exists
//	<state>/owners/<sha256 of owner>  link to the grant of a pod or a claim
//	<state>/gpus/<uuid>/<id>          link to a grant on the GPU; says what a damaged grant was about
//	<run>/lock                        the one lock
//	<run>/bindings/<key>.json         a grant in use by one container; key is of runtime root and container id
//	<run>/grants/<id>/<key>           link to a binding of the grant
//	<run>/cgroups/<hash of path>      link to the binding whose container may get the cgroup
//	<run>/creates/<process>           a create of a container without a GPU that is under way
//	<run>/outside.json                what the watch found in use outside the ledger
//
// <state> survives a reboot; what lies in <run> counts only in the boot that wrote it. Links are
// derived from the files: a crash may leave a link too many, but never a grant without its links,
// and Check repairs them. A reader does not believe a link alone.
//
// Each change is durable when its call returns. Update is a critical section, not a transaction: an
// error from its function undoes nothing.
//
// A check and a sweep have three steps. readSurvey reads all files (survey.go), repairs plans by
// that value what is to change (repair.go), and apply changes one file.
package ledger
