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
// The way of a plan: the engine's files as an undo would leave them (withoutUs) give the present
// default handler. From it comes what the engine's files get (wanted), one function an engine makes
// the new texts (fileEdits), and the comparison with the files makes the changes.
package configure
