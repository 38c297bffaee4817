@"%~dp0kubectl-gpuledger.exe" cgpu %*
