package configfile

import "strings"

// Document is a configuration file. Its comments, order and formatting survive an edit. An error
// about its text begins with the number of a line, so a caller writes the path and ":" before it,
// without a space.
type Document interface {
	// Get is the value at a path of keys.
	Get(path ...string) (any, bool)
	// Set stores a value at a path, unless it is there already.
	Set(value any, path ...string) error
	// Unset takes out a key or a whole table, if it exists.
	Unset(path ...string) error
	// Tree is the whole content, as maps, lists and values.
	Tree() map[string]any
	// Bytes is the present text.
	Bytes() []byte
}

// Parse reads a file: as JSON if its name ends so, else as TOML.
func Parse(path string, text []byte) (Document, error) {
	if strings.HasSuffix(path, ".json") {
		d, err := ParseJSON(text)
		if err != nil {
			return nil, err
		}
		return d, nil
	}
	d, err := ParseTOML(text)
	if err != nil {
		return nil, err
	}
	return d, nil
}
