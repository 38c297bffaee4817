// Package configfile reads TOML and JSON files, and edits them as text: comments, order and layout
// survive an edit, and nothing but the edited key changes. It also takes an edit out of a file that
// others have changed since.
package configfile
