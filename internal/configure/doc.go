// Package configure puts gpuledger-runtime into an engine's configuration and takes it out again,
// to the byte.
//
// New reads everything and computes a Plan: each file with its bytes before and after. New writes
// nothing. Apply first records the plan below the state directory, then replaces the files. It
// replaces each file whole, in an order that leaves the engine able to start at every step. A
// failed Apply is rolled back; after a kill, the next call finishes or undoes the work. Undo
// restores the recorded bytes. In a file that has changed since, Undo takes out only gpuledger's
// lines.
//
// New computes a plan in these steps. withoutUs gives the engine's files as an undo would leave
// them, and so the default handler from before gpuledger. planEngine says from that what the files
// are to get (the value wanted). One function for each engine, such as editContainerd, makes the
// new texts from it (fileEdits). The changes are where these texts differ from the files.
package configure
