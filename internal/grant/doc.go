// Package grant defines gpuledger's nouns as plain values: Request, Grant, Binding, Inventory,
// Policy, View, Verdict. It reads nothing and decides nothing. Every other package imports it. It
// imports only the standard library and CDI's types.
package grant
