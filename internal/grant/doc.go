// Package grant holds gpuledger's nouns as plain values: Request, Grant, Binding, Inventory,
// Policy, View, Verdict. It reads nothing and decides nothing. Everything else imports it; it
// imports the standard library and CDI's types.
package grant
