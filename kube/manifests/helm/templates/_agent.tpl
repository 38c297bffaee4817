{{- /* files/ has links to what is the same in kube/manifests. The namespace is the release's. */ -}}
{{- define "shared" -}}
{{ .root.Files.Get (printf "files/%s.yaml" .file) | replace "gpuledger-system" .root.Release.Namespace }}
{{- end -}}

{{- define "image" -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag }}{{ end -}}
{{- end -}}

{{- define "pod" }}
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets: {{ toJson . }}
      {{- end }}
      nodeSelector: {{ toJson .Values.nodeSelector }}
      tolerations: {{ toJson .Values.tolerations }}
      {{- with .Values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with .Values.seLinuxOptions }}
      securityContext: {seLinuxOptions: {{ toJson . }}}
      {{- end }}
      hostPID: true # the ledger reads from the node's processes whether a container runs
{{- end -}}

{{- define "container" }}
          image: {{ include "image" .root.Values.image | quote }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          {{- if .root.Values.metrics.enabled }}
          ports: [{name: metrics, containerPort: 9838}]
          {{- end }}
          livenessProbe: # a loop or a call that hangs; its output is in the pod's events
            exec: {command: [/usr/bin/gpuledger-kube, probe, {{ .agent }}, alive]}
            initialDelaySeconds: 30
            periodSeconds: 30
            timeoutSeconds: 10
            failureThreshold: 4
          readinessProbe: # the kubelet has registered it
            exec: {command: [/usr/bin/gpuledger-kube, probe, {{ .agent }}, ready]}
            periodSeconds: 10
            timeoutSeconds: 10
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
            seccompProfile: {type: RuntimeDefault}
          resources: {{ toJson .root.Values.resources }}
{{- end -}}

{{- /* root is a volume's name for a runtime's directory: containerd-runc of /run/containerd/runc. */ -}}
{{- define "root" -}}
runtime-{{ . | trimPrefix "/" | replace "/" "-" | replace "." "-" | replace "_" "-" | lower | trunc 54 | trimSuffix "-" }}
{{- end -}}

{{- define "mounts" }}
            # read
            - {name: config, mountPath: /etc/gpuledger, readOnly: true}
            - {name: shim, mountPath: /usr/lib/gpuledger, readOnly: true}
            - {name: cgroup, mountPath: /sys/fs/cgroup, readOnly: true}
            {{- range .Values.runtimeRoots }}
            - {name: {{ include "root" . }}, mountPath: {{ . | quote }}, readOnly: true}
            {{- end }}
            # written; the node mounts the records of limits below the second, maybe later
            - {name: state, mountPath: /var/lib/gpuledger}
            - {name: run, mountPath: /run/gpuledger, mountPropagation: HostToContainer}
{{- end -}}

{{- define "volumes" }}
        - {name: config, hostPath: {path: /etc/gpuledger, type: Directory}}
        - {name: shim, hostPath: {path: /usr/lib/gpuledger, type: DirectoryOrCreate}}
        - {name: cgroup, hostPath: {path: /sys/fs/cgroup, type: Directory}}
        {{- range .Values.runtimeRoots }}
        - {name: {{ include "root" . }}, hostPath: {path: {{ . | quote }}, type: DirectoryOrCreate}}
        {{- end }}
        - {name: state, hostPath: {path: /var/lib/gpuledger, type: Directory}}
        - {name: run, hostPath: {path: /run/gpuledger, type: DirectoryOrCreate}}
{{- end -}}

{{- /* resources are the names that pods ask for GPUs by, in TOML. */ -}}
{{- define "resources" -}}
{{- $file := dict "resource" .root.Values.scheduler.resources }}
{{- with .root.Values.scheduler.nvidiaDevicePlugin }}{{ $_ := set $file "nvidia_device_plugin" . }}{{ end }}
{{- $_ := include "nvidiaShares" .root }}
{{- with .partOf }}{{ $_ := set $file "part_of" . }}{{ end }}
{{- toToml $file }}
{{- end -}}

{{- /* nvidiaShares are the names of the shares that NVIDIA's plugin would make, as a JSON list. The programs
read these of the same file, and end with what is refused here (kube/dialect/nvidia.go). */ -}}
{{- define "nvidiaShares" -}}
{{- $names := list }}
{{- $file := fromYaml .Values.scheduler.nvidiaDevicePlugin }}
{{- with get $file "Error" }}{{ fail (printf "scheduler.nvidiaDevicePlugin cannot be read: %s" .) }}{{ end }}
{{- $version := get $file "version" | default "v1" | toString }}
{{- if ne $version "v1" }}{{ fail (printf "scheduler.nvidiaDevicePlugin: the version is %q, and v1 is known" $version) }}{{ end }}
{{- $sharing := get $file "sharing" | default dict }}
{{- if and (kindIs "map" (get $sharing "timeSlicing")) (kindIs "map" (get $sharing "mps")) }}
{{- fail "scheduler.nvidiaDevicePlugin: it has both timeSlicing and mps, and GPUs are shared in one way" }}
{{- end }}
{{- range $way := list "timeSlicing" "mps" }}
{{- $shared := get $sharing $way | default dict }}
{{- $resources := get $shared "resources" | default list }}
{{- range $resources }}
{{- $name := get . "name" }}{{ if not (contains "/" $name) }}{{ $name = printf "nvidia.com/%s" $name }}{{ end }}
{{- $replicas := get . "replicas" | int }}
{{- if ne $name "nvidia.com/gpu" }}{{ fail (printf "scheduler.nvidiaDevicePlugin: it divides %q, and gpuledger can divide nvidia.com/gpu only" $name) }}{{ end }}
{{- if or (lt $replicas 1) (gt $replicas 1000) }}{{ fail (printf "scheduler.nvidiaDevicePlugin: %q has %d replicas, and 1 to 1000 are possible" $name $replicas) }}{{ end }}
{{- if get $shared "renameByDefault" }}{{ $name = printf "%s.shared" $name }}{{ end }}
{{- if gt $replicas 1 }}{{ $names = append $names $name }}{{ end }}
{{- end }}
{{- if gt (len $resources) 1 }}{{ fail "scheduler.nvidiaDevicePlugin: nvidia.com/gpu is there twice" }}{{ end }}
{{- end }}
{{- toJson $names }}
{{- end -}}

{{- /* resourceNames are the names of resources that pods ask for GPUs by, as a JSON list: scheduler.resources
without annotations, which have no domain, and the shares that NVIDIA's plugin would make. */ -}}
{{- define "resourceNames" -}}
{{- $names := list }}
{{- range .Values.scheduler.resources }}{{ if contains "/" .name }}{{ $names = append $names .name }}{{ end }}{{ end }}
{{- $names = concat $names (include "nvidiaShares" . | fromJsonArray) }}
{{- concat $names .Values.scheduler.shared | uniq | toJson }}
{{- end -}}

{{- /* hash annotates pods with the files that their programs read only when they start. So an upgrade that
changes a file replaces the pods. */ -}}
{{- define "hash" }}
      annotations: {gpuledger.dev/config: {{ . | sha256sum | quote }}}
{{- end -}}

{{- /* agent is the agent to install: an agent is never changed under the pods that it serves. So auto is
refused where no cluster can be read. From one that can be read, even an empty list is a table with keys. */ -}}
{{- define "agent" -}}
{{- if ne .Values.agent "auto" }}{{ .Values.agent }}
{{- else if not (lookup "apps/v1" "DaemonSet" .Release.Namespace "") }}
{{- fail "agent auto keeps the agent that the cluster has, and nothing can be read from a cluster here (helm template, Argo CD, or a dry run without --dry-run=server): set agent to dra or device-plugin" }}
{{- else if lookup "apps/v1" "DaemonSet" .Release.Namespace "gpuledger-device-plugin" }}device-plugin
{{- else if lookup "apps/v1" "DaemonSet" .Release.Namespace "gpuledger-dra" }}dra
{{- else if and (.Capabilities.APIVersions.Has "resource.k8s.io/v1") (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version) }}dra
{{- else }}device-plugin
{{- end }}
{{- end -}}
