// Package filetree reads the files of a system: this machine's, or an image's below a directory.
// Names are as the system's own programs see them, and links are followed within it.
package filetree
