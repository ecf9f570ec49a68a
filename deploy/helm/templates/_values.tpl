{{- define "odradek.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.name }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.name }}:{{ .Values.image.tag }}{{ end }}
{{- end }}

{{/* The settings of a process as environment variables. They are part of the pod, so a change restarts the pods of the set. */}}
{{- define "odradek.settings" -}}
{{- range $name, $value := .settings }}
- name: ODRADEK_{{ $.process }}_{{ $name | upper | replace "." "_" }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "odradek.brokerSettings" -}}
{{- $settings := dict }}
{{- if eq .Values.authentication.kafka "passwords" }}
{{- $settings = dict "listener.security.protocol.map" "KAFKA:SASL_SSL,GRPC:SSL,REPLICATION:SSL" "sasl.enabled.mechanisms" "SCRAM-SHA-512" }}
{{- else if ne .Values.authentication.kafka "certificates" }}
{{- fail "authentication.kafka must be certificates or passwords" }}
{{- end }}
{{- include "odradek.settings" (dict "process" "BROKER" "settings" (merge (deepCopy .Values.brokers.settings) $settings)) }}
{{- end }}

{{/* The pods of a set should run on different hosts; with zones, they must. */}}
{{- define "odradek.affinity" -}}
podAntiAffinity:
{{- if .zones }}
  requiredDuringSchedulingIgnoredDuringExecution:
  - labelSelector:
      matchLabels:
        app.kubernetes.io/name: {{ .name }}
    topologyKey: kubernetes.io/hostname
{{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
  - podAffinityTerm:
      labelSelector:
        matchLabels:
          app.kubernetes.io/name: {{ .name }}
      topologyKey: kubernetes.io/hostname
    weight: 100
{{- end }}
{{- end }}

{{- define "odradek.spread" -}}
- labelSelector:
    matchLabels:
      app.kubernetes.io/name: {{ .name }}
  maxSkew: 1
{{- if .zones }}
  minDomains: {{ .zones }}
{{- end }}
  topologyKey: topology.kubernetes.io/zone
  whenUnsatisfiable: {{ if .zones }}DoNotSchedule{{ else }}ScheduleAnyway{{ end }}
{{- end }}

{{- define "odradek.advertised" -}}
{{- if and .Values.listeners.externalDomain .Values.certificates.create }}
{{- fail "listeners.externalDomain needs certificates.create=false, because the job cannot make certificates for your domain: provide certificates with the names broker-N.DOMAIN (deploy/k8s/README.md)" }}
{{- end }}
{{- $host := .Values.listeners.externalDomain | default "$(POD_NAMESPACE).svc" -}}
KAFKA://$(POD_NAME).{{ $host }}:9092,GRPC://$(POD_NAME).{{ $host }}:9090,REPLICATION://$(POD_IP):9093
{{- end }}
