// Package configure puts gpuledger-runtime into an engine's configuration, and takes it out again to the byte.
//
// New reads everything and computes a Plan: each file with its bytes before and after. Nothing is written by then. Apply
// records the plan below the state directory and only then replaces files, each whole and in an order that leaves the
// engine startable at every step; what fails is rolled back, and what was killed is finished or undone by the next call.
// Undo puts the recorded bytes back; where somebody else has changed a file since, only our lines are taken out.
package configure
