//go:build dra

package main

import resource "k8s.io/api/resource/v1" // from 1.34 on

func init() { newer = append(newer, resource.AddToScheme) }
