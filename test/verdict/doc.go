// Package verdict says what gpuledger's documents promise about a create: pass, admit or refuse,
// the code of a refusal, and for an admission the grant and its GPUs.
//
// It was written from the documents alone (docs/*.md, docs/adr, configs/config.toml, doc.go),
// without a look at the code that it is compared with, and it shares no line with that code. So a
// disagreement is a mistake of the product, of a document, or of this reading of the documents.
//
// Judge is the reading. Each of the other files has the rules of one topic, with the document
// that they come from. Generate makes random cases: ledgers, policies and specs, each from a
// number alone. What the documents leave open is an Unclear verdict, which is counted and not
// compared.
//
// Not covered: what only a live node has (MPS daemons, descriptors, mounts that show a directory
// at a second place, cgroups of systemd), the hook and NRI, and the driver's files.
package verdict
