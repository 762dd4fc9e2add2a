-- Slurm's job_submit.lua: who may leave out the check of prolog.sh.   slurm.conf: JobSubmitPlugins=lua
-- Jobs without GPUs leave it out; jobs of many nodes may not. slurmctld reads this file from the folder of slurm.conf.
local most_nodes = 16

local function has(comment)
    return comment ~= nil and string.find(" " .. comment .. " ", "[ ,]nodistcheck[ ,]") ~= nil
end

local function wants_gpus(job)
    for _, tres in pairs({job.tres_per_node, job.tres_per_job, job.tres_per_socket, job.tres_per_task}) do
        if string.find(tres, "gpu") then return true end
    end
    return false
end

function slurm_job_submit(job, partitions, uid)
    if has(job.comment) and job.min_nodes ~= slurm.NO_VAL and job.min_nodes > most_nodes then
        slurm.log_user("--comment=nodistcheck is allowed up to %d nodes", most_nodes)
        return slurm.ERROR
    end
    if not wants_gpus(job) and not has(job.comment) then
        job.comment = (job.comment == nil and "" or job.comment .. " ") .. "nodistcheck"
    end
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
    return slurm.SUCCESS
end
