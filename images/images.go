// Package images holds the definitions of the project's own images, one file each.
//
// What. A definition is text: the packages of Debian and of Alpine in an image, its variables and its default command.
//
// Place in the flow. pkg/image/build reads the definitions, and makes images and Dockerfiles of them. The package imports nothing of this
// module.
//
// Lifecycle. The executable contains the definitions; nothing is read from the disk.
//
// Concurrency. Files never change.
//
// Limits. The format is described in pkg/image/build, at Definition.
package images

import "embed"

// Files are the definitions, NAME.yaml.
//
//go:embed *.yaml
var Files embed.FS
