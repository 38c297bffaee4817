# configs/config.toml as the packages bring it: every key is a comment, so that `gpuledger configure` finds nothing decided.
1s/.*/# gpuledger's configuration. What is commented out shows the default; unknown keys are an error that names key and line./
s/^([a-z_]+ *=)/# \1/
# An older version refuses a table that it does not know, even an empty one, and this file stays when a newer one is removed.
s/^\[(ask|users)\]/# [\1]/
