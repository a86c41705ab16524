# Completes the words of oarlock in PowerShell. Read it from $PROFILE.

Register-ArgumentCompleter -Native -CommandName oarlock -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $words = @($commandAst.CommandElements |
        Where-Object { $_.Extent.EndOffset -lt $cursorPosition } |
        ForEach-Object { $_.Extent.Text })
    $before = @($words | Select-Object -Skip 1)
    & $words[0] complete-words "--current=$wordToComplete" -- @before 2>$null | ForEach-Object {
        $kind = $_.Substring(0, 1)
        $value, $about = $_.Substring(1).Split("`t", 2)
        if ($kind -in 'f', 'd') {
            $path = $wordToComplete.Substring($value.Length)
            [System.Management.Automation.CompletionCompleters]::CompleteFilename($path) | ForEach-Object {
                [System.Management.Automation.CompletionResult]::new(
                    $value + $_.CompletionText, $_.ListItemText, $_.ResultType, $_.ToolTip)
            }
        } else {
            if (-not $about) { $about = $value }
            [System.Management.Automation.CompletionResult]::new($value, $value, 'ParameterValue', $about)
        }
    }
}
